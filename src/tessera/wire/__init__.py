"""Codecs between bytes and the vocabulary. Pure: text in, values out."""
