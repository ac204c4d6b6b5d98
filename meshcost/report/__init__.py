"""What people see: the bill in a terminal, in a notebook and as data; explanations; pages about models and calls.

A figure is computed below (ledger, formula, models) and only laid out here.
"""
