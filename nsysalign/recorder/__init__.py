"""The recorder of our own: a library in C that CUPTI and NVTX call."""
