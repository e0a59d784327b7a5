"""Ways to execute a model, one file per family.

| module | answers |
|---|---|
| base | what does every mode tell, and what does it give back (`Prepared`)? |
| eager, backends, compiled, exported | how does each kind of compilation prepare a step? |
| graphs, bucketed | how is a step captured in a CUDA graph, for one batch size or several? |
| piecewise | how are the parts between some operators captured? |
| selective | how are the repeated blocks of a module compiled alone? |
| inductor | which options and caches does Inductor use? |
"""
