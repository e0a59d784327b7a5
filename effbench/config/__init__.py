"""From the command line to the cells of a sweep.

    argv -> CommandLine of Words -> Jobs (Words and a Config each) -> Cells -> plan

- `launch`: composes all jobs of a command line with Hydra, then runs or prints their sweep
- `overrides`: a command line: its options, and its overrides, parsed into a `Word` each; what
  `resume=` adds
- `matrix`: the product of the values of all overrides: the words of each job
- `compose`: the words of a job become a `settings.Config`
- `validation`: refuses settings that do not fit together
- `cells`: a `Config` becomes a `Cell`; which cells are planned; `conduct` runs their sweep, and
  `print_plan` prints it
- `plugins`: what Hydra needs to know of effbench; sweepers of other packages
- `refusals`: the text of a refused name, value or syntax, and where other such texts are
"""
