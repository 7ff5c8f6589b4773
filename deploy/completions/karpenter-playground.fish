complete -c karpenter-playground -l listen -d 'Address of the API server; port 0 selects a free port' -r
complete -c karpenter-playground -l kubeconfig -d 'Path of the kubeconfig that is written at startup' -r -F
complete -c karpenter-playground -l metrics -d 'Address of the controllers\' Prometheus metrics; port 0 selects a free port. By default no metrics are served' -r
complete -c karpenter-playground -l provider -d 'Cloud provider to use' -r -f -a "kwok\t'Simulated nodes without a cloud'"
complete -c karpenter-playground -l feature-gates -d 'Feature gates, as for `karpenter`; the reference of its flags lists them' -r
complete -c karpenter-playground -l speed -d 'Speed of time in the cluster, relative to real time' -r
complete -c karpenter-playground -l instance-types -d 'JSON file of instance types, instead of the built-in ones' -r -F
complete -c karpenter-playground -l apply -d 'Files with manifests to apply at startup' -r -F
complete -c karpenter-playground -l faults -d 'Faults to inject' -r -f -a "none\t'No faults'
api\t'The API server sometimes returns errors, answers late and closes watches'
capacity\t'No spot capacity in half of the zones'
chaos\t'The faults of `api` and `capacity`'"
complete -c karpenter-playground -l seed -d 'Seed of generated names and injected faults' -r
complete -c karpenter-playground -l log-level -d 'Log level of messages to standard error' -r -f -a "off\t'No messages'
error\t'Errors only'
info\t'Errors, warnings and the main steps'
debug\t'All messages'"
complete -c karpenter-playground -l no-controllers -d 'Start only the control plane (with `--provider aws` also the fake of AWS and its instances), without Karpenter, so that you can start your own controllers, such as those of another provider'
complete -c karpenter-playground -l exit-when-idle -d 'Exit with a summary once the cluster is idle; the exit code is 0 if every pod runs'
complete -c karpenter-playground -l demo -d 'Run a demo: a burst, a pod that cannot run, a spot interruption, a rehearsed change and the consolidation that follows'
complete -c karpenter-playground -l open -d 'Open the dashboard in the browser'
complete -c karpenter-playground -s h -l help -d 'Print help (see more with \'--help\')'
complete -c karpenter-playground -s V -l version -d 'Print version'
