"""The kubelet's own gRPC: messages of device plugins and pod resources; and what a hook is told (OCI).

``*_pb2.py`` and ``*_pb2.pyi`` are generated from the protos beside them by ``tools/protos.py``; nobody edits them.
"""
