"""Models for other systems: scores as ONNX, or vectors whose inner product is the score, for any vector index."""
