"""Codecs between Kubernetes objects and the vocabulary: our annotations, our kinds, thin views of theirs."""
