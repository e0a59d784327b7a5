"""From the command line to the cells of a sweep.

    argv -> CommandLine of Words -> Jobs (Words and a Config each) -> Cells -> plan

- `overrides`: a command line: its options, and its overrides, parsed into a `Word` each; what
  `resume=` adds
- `launch`: Hydra's sweeper chooses the jobs, and its launcher runs them as one sweep
- `compose`: the words of a job become a `settings.Config`
- `validation`: refuses settings that do not fit together
- `cells`: a `Config` becomes a `Cell`; which cells are planned
- `refusals`: the text of a refused name, value or syntax, and where all other such texts are
"""
