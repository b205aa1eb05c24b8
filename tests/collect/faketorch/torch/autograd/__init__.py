"""Enough of torch.autograd for the tests."""
