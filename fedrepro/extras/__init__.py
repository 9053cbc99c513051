"""Methods and measurements of single appendices: FADA, DP-SGD, leakage, inversion, CLIP."""
