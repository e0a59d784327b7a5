"""From the command line to the cells of a sweep.

    words -> overrides -> configurations -> cells -> plan

- `overrides`: the words of a command line: options, overrides in any order, `resume=`
- `launch`: Hydra parses the overrides, and its sweeper chooses the jobs
- `compose`: the overrides of a job become a `settings.Config`
- `validation`: refuses settings that do not fit together
- `cells`: a `Config` becomes a `Cell`; which cells are planned
- `refusals`: the text of a refused name, value or syntax
"""
