"""Which loss scale is safe: histograms of gradients -> window, scaler policies, advice. Pure; no torch here."""
