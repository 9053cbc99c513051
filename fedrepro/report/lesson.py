"""Tools of the teaching notebooks: a method's source, and the arguments of its functions."""

import copy
import inspect
from collections.abc import Mapping
from dataclasses import replace
from textwrap import dedent
from typing import Any

import pandas as pd
from torch import Tensor

from fedrepro.base.errors import FedReproError
from fedrepro.federated.rounds import Training
from fedrepro.methods.base import Method
from fedrepro.quantities.paper_run import Study


def code(*parts: Any) -> Any:
    """The source of classes and functions in the installed package, each with its file and line."""
    from IPython.display import Code

    texts = [
        f"# {part.__module__.replace('.', '/')}.py, line {first}\n{dedent(''.join(lines))}"
        for part in parts
        for lines, first in [inspect.getsourcelines(part)]
    ]
    return Code("\n".join(texts), language="python")


def small(study: Study) -> Study:
    """The study itself at scale smoke; at other scales, the study of the embedded digits."""
    if study.scale == "smoke":
        return study
    return replace(study, dataset="minidigits", scale="smoke", changes={}, only=None)


class _Caught(Exception):
    """Carries a function's arguments out of a round."""


def given(study: Study, method: Method, hook: str = "client_loss", round: int = 2) -> Any:
    """The arguments of the first call of a method's function in a round. Earlier rounds are
    trained, and nothing is recorded. FedReproError: the function is not called."""

    def stop(*arguments: Any) -> Any:
        raise _Caught(*arguments)

    training = Training(method, study.protocol(), study.federation(), study.seed)
    for _ in range(round - 1):
        training.one_round()
    training.method = copy.copy(method)
    object.__setattr__(training.method, hook, stop)  # a method is frozen
    try:
        training.one_round()
    except _Caught as caught:
        return caught.args
    raise FedReproError(f"{method.name} does not call {hook} in round {round}; choose another")


def shapes(**tensors: Tensor) -> pd.DataFrame:
    """Shape and type: one row per tensor."""
    rows = {n: (tuple(t.shape), str(t.dtype).removeprefix("torch.")) for n, t in tensors.items()}
    return pd.DataFrame.from_dict(rows, orient="index", columns=["shape", "type"])


def beside(**terms: Mapping[str, Tensor]) -> pd.DataFrame:
    """Loss terms, computed in several ways: one row per term, one column per way."""
    return pd.DataFrame(
        {way: {n: v.item() for n, v in named.items()} for way, named in terms.items()}
    )
