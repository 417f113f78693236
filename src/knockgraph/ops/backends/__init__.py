"""The sparse product by torch alone, by its CPU kernels and by cuSPARSE, and the choice between them and Triton."""
