"""The kubelet's own gRPC: device plugins and pod resources, as messages and stubs generated from their protos.

``*_pb2.py``, ``*_pb2.pyi`` and ``*_grpc.py`` come from ``tools/protos.py``; nobody edits them.
"""
