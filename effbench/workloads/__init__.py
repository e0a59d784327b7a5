"""What is done with a model: each workload says what one call is, and how it is checked and timed.

| module | answers |
|---|---|
| base, select | what does every workload tell, and which one has a cell? |
| inference, training, generation, stream, arrivals | what is one call of this workload? |
| dropout, losses | how does training become comparable? |
| state | what does a call change in the module, and how is it restored? |
| quantization | which layers are quantized? |
| endings | how does a trial end early, and what do exceptions of a module mean? |
"""
