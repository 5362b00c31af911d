"""The scheduler on a virtual clock: clusters and streams of pods, replayed through the allocator of production.

A simulation is a set of *runs*, one for each policy and seed. It leaves in the folder that ``--out`` names::

    summary.json      settings, cluster, trace, every run's figures (tessera.simulator.result.Summary)
    curve.csv         a line for each run and whole percent of arrived demand
    placements.csv    a line for each arrival (of several runs: <policy>/<seed>/placements.csv)
    cluster.csv       a line for each node as the run left it (beside its placements.csv)

``summary.json`` names the last two of each run, relative to itself. All of them are the same bytes for the same
input and settings, whoever ran it, in how many processes, and however often it was interrupted: no file says how
long anything took. Numbers of devices are in milli (1000 is one device) unless a name says otherwise.

``placements.csv``: ``arrival,pod,node,gpus``. Arrivals are counted from 0; ``pod`` is the name that the trace
gives it (a pod that arrives again has the name again); ``node`` is empty where it was rejected; ``gpus`` are
indices of devices on the node joined by ``;``, empty for a pod that asked for none. Where pods were moved, lost
with their node or placed after a wait, the line says where the pod was placed first.

``curve.csv``: ``policy,seed,arrived,allocation,fragmentation,fragmentation_ratio``. ``arrived`` is the demand for
devices that has arrived in whole percent of what the cluster has; ``allocation`` what is held, ``fragmentation``
what the target workload cannot use of the rest, both in percent of what the cluster has, means over the arrivals
of that percent, two decimals; ``fragmentation_ratio`` is the second in percent of what is idle. The last two are
empty where fragmentation was not asked for.

``cluster.csv``: ``node,model,cpu_milli,cpu_used,memory_mib,memory_used,devices``. ``model`` is empty for a node
without devices (several models are joined by ``|``), ``devices`` the milli in use on each device, joined by
``;``; ``cpu_milli`` and ``memory_mib`` are empty where the inventory does not say.
"""
