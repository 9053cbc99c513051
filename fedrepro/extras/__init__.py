"""What one appendix alone needs: FADA, DP-SGD, leakage, inversion, CLIP."""
