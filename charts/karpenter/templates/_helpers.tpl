{{- define "karpenter.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "karpenter.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "karpenter.chart" -}}
{{- printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "karpenter.selectorLabels" -}}
app.kubernetes.io/name: {{ include "karpenter.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "karpenter.labels" -}}
helm.sh/chart: {{ include "karpenter.chart" . }}
{{ include "karpenter.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.additionalLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Name and labels of a cluster-scoped object, with the annotations common to all objects. Arguments: (list context name). */}}
{{- define "karpenter.metadata" -}}
{{- $context := index . 0 -}}
name: {{ index . 1 }}
labels:
  {{- include "karpenter.labels" $context | nindent 2 }}
{{- with $context.Values.additionalAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "karpenter.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "karpenter.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* Not empty if the conversion webhook is served; only the AWS provider needs it, and a shadow has none. */}}
{{- define "karpenter.webhook" -}}
{{- if and .Values.webhook.enabled (eq .Values.provider "aws") (not .Values.shadow.enabled) }}true{{ end }}
{{- end }}

{{/* The image. The one of upstream, which values files of its chart may name, runs another controller with these settings. */}}
{{- define "karpenter.image" -}}
{{- $image := .Values.controller.image -}}
{{- if hasPrefix "public.ecr.aws/karpenter/" (default "" $image.repository) -}}
{{- fail (printf "controller.image.repository is %s, the image of upstream: remove controller.image from the values, or set an image of this project" $image.repository) -}}
{{- end -}}
{{- $own := dict "aws" "ghcr.io/karpenter-rs/karpenter" "kwok" "ghcr.io/karpenter-rs/karpenter-kwok" "cluster-api" "ghcr.io/karpenter-rs/karpenter-cluster-api" -}}
{{ required "controller.image.repository is required with `provider: custom`: the image of your provider" (default (get $own .Values.provider) $image.repository) }}:{{ default .Chart.AppVersion $image.tag }}
{{- with $image.digest }}@{{ . }}{{ end }}
{{- end }}

{{/*
The settings, with those of earlier chart generations under their current names: `settings.aws.*` (v0.19 to v0.31) and
`clusterName`, `clusterEndpoint`, `aws.*` (before). A value under its current name takes precedence.
*/}}
{{- define "karpenter.settings" -}}
{{- $settings := deepCopy .Values.settings -}}
{{- $middle := default dict (get .Values.settings "aws") -}}
{{- $early := merge (dict "clusterName" .Values.clusterName "clusterEndpoint" .Values.clusterEndpoint) (default dict .Values.aws) -}}
{{- range $name, $old := dict
      "clusterName" "clusterName"
      "clusterEndpoint" "clusterEndpoint"
      "clusterCABundle" "clusterCABundle"
      "interruptionQueue" "interruptionQueueName"
      "legacyDefaultInstanceProfile" "defaultInstanceProfile" }}
{{- if not (get $settings $name) }}
{{- $_ := set $settings $name (default "" (coalesce (get $middle $old) (get $early $old))) }}
{{- end }}
{{- end }}
{{- range $name := list "isolatedVPC" "vmMemoryOverheadPercent" "reservedENIs" }}
{{- if hasKey $middle $name }}
{{- $_ := set $settings $name (get $middle $name) }}
{{- end }}
{{- end }}
{{- toJson $settings }}
{{- end }}

{{/*
An environment variable for a setting that is set, false and 0 included. Templates in it are rendered, so that an umbrella
chart can pass its own values. Arguments: (list name value context).
*/}}
{{- define "karpenter.env" -}}
{{- $value := index . 1 -}}
{{- if not (or (kindIs "invalid" $value) (eq (toString $value) "")) -}}
- name: {{ index . 0 }}
  value: {{ tpl (toString $value) (index . 2) | quote }}
{{- end }}
{{- end }}

{{/* Feature gates as `Name=true,…`, without removed feature gates. Argument: the map of feature gates. */}}
{{- define "karpenter.gates" -}}
{{- $gates := list }}
{{- range $name, $on := omit . "drift" "driftEnabled" }}
{{- $spelt := ternary "NodeClassCEL" (printf "%s%s" (substr 0 1 $name | upper) (substr 1 -1 $name)) (eq $name "nodeClassCEL") }}
{{- $gates = append $gates (printf "%s=%t" $spelt $on) }}
{{- end }}
{{- join "," $gates }}
{{- end }}

{{/* A pod affinity, anti-affinity or spread entry with the selector of this release if it has none. Arguments: (list context entry). */}}
{{- define "karpenter.withSelector" -}}
{{- $entry := index . 1 -}}
{{- if not (hasKey $entry "labelSelector") }}
{{- $labels := include "karpenter.selectorLabels" (index . 0) | fromYaml }}
{{- $entry = merge (dict "labelSelector" (dict "matchLabels" $labels)) $entry }}
{{- end }}
{{- toYaml $entry }}
{{- end }}
