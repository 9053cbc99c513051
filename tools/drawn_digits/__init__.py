"""The generated digits: ``minidigits`` and the stand-ins, drawn from fonts, scans and photos."""
