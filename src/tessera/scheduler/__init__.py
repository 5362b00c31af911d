"""The scheduler beside a stock kube-scheduler: decides and reserves at Filter, commits at Bind."""
