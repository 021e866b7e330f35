{{- define "a2g.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Names of pods are labels with at most 63 characters, and end in a number. */}}
{{- define "a2g.fullname" -}}
{{- $name := include "a2g.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "a2g.selectorLabels" -}}
app.kubernetes.io/name: {{ include "a2g.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "a2g.labels" -}}
{{ include "a2g.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "a2g.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "a2g.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "a2g.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{/* The time after which Kubernetes ends a pod. 30 s are for the last receipts, reports and answers. */}}
{{- define "a2g.graceSeconds" -}}
{{- add .Values.preStopSeconds .Values.executor.drainSeconds 30 }}
{{- end }}

{{/* The path of a key of the Secrets, as a string of TOML. */}}
{{- define "a2g.secretPath" -}}
{{- printf "/run/a2g-executor/secrets/%s" . | toJson }}
{{- end }}

{{- define "a2g.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
