"""Triton kernels: sparse products, attention, fused layers. Imported when first used: triton may be absent."""
