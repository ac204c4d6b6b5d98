"""meshcost: what a way of parallelising a model costs in communication.

import meshcost as mc
ledger = mc.analyze(mc.load("job.yaml"))
"""
