// The GPU's clock over the whole run, and the runs of the chosen label under it.
