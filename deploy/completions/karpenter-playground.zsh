#compdef karpenter-playground

autoload -U is-at-least

_karpenter-playground() {
    typeset -A opt_args
    typeset -a _arguments_options
    local ret=1

    if is-at-least 5.2; then
        _arguments_options=(-s -S -C)
    else
        _arguments_options=(-s -C)
    fi

    local context curcontext="$curcontext" state line
    _arguments "${_arguments_options[@]}" : \
'--listen=[Address of the API server; port 0 selects a free port]:ADDR:PORT:_default' \
'--kubeconfig=[Path of the kubeconfig that is written at startup]:PATH:_files' \
'--metrics=[Address of the controllers'\'' Prometheus metrics; port 0 selects a free port. By default no metrics are served]:ADDR:PORT:_default' \
'--provider=[Cloud provider to use]:PROVIDER:((kwok\:"Simulated nodes without a cloud"))' \
'--feature-gates=[Feature gates, as for \`karpenter\`; the reference of its flags lists them]:GATE=BOOL,...:_default' \
'--speed=[Speed of time in the cluster, relative to real time]:N:_default' \
'--instance-types=[JSON file of instance types, instead of the built-in ones]:FILE:_files' \
'*--apply=[Files with manifests to apply at startup]:FILE:_files' \
'--faults=[Faults to inject]:PROFILE:((none\:"No faults"
api\:"The API server sometimes returns errors, answers late and closes watches"
capacity\:"No spot capacity in half of the zones"
chaos\:"The faults of \`api\` and \`capacity\`"))' \
'--seed=[Seed of generated names and injected faults]:N:_default' \
'--log-level=[Log level of messages to standard error]:LEVEL:((off\:"No messages"
error\:"Errors only"
info\:"Errors, warnings and the main steps"
debug\:"All messages"))' \
'(--demo --exit-when-idle)--no-controllers[Start only the control plane (with \`--provider aws\` also the fake of AWS and its instances), without Karpenter, so that you can start your own controllers, such as those of another provider]' \
'--exit-when-idle[Exit with a summary once the cluster is idle; the exit code is 0 if every pod runs]' \
'--demo[Run a demo\: a burst, a pod that cannot run, a spot interruption, a rehearsed change and the consolidation that follows]' \
'--open[Open the dashboard in the browser]' \
'-h[Print help (see more with '\''--help'\'')]' \
'--help[Print help (see more with '\''--help'\'')]' \
'-V[Print version]' \
'--version[Print version]' \
&& ret=0
}

(( $+functions[_karpenter-playground_commands] )) ||
_karpenter-playground_commands() {
    local commands; commands=()
    _describe -t commands 'karpenter-playground commands' commands "$@"
}

if [ "$funcstack[1]" = "_karpenter-playground" ]; then
    _karpenter-playground "$@"
else
    compdef _karpenter-playground karpenter-playground
fi
