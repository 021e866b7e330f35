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

{{/* Not empty if the tools are not those of the image. */}}
{{- define "a2g.hasOwnTools" -}}
{{- if or .Values.tools.volume .Values.tools.remote }}true{{ end }}
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

{{/* The init container that copies the Secrets to files that only the executor can read. */}}
{{- define "a2g.copySecrets" -}}
- name: secrets
  image: {{ .Values.secrets.copyImage }}
  # -f: a file of an earlier start is read-only.
  command:
    - sh
    - -euc
    - umask 077; mkdir -p /run/a2g-executor/secrets; cp -fL /secrets/* /run/a2g-executor/secrets/
  securityContext:
    {{- include "a2g.containerSecurity" . | nindent 4 }}
  resources:
    requests: {cpu: 10m, memory: 16Mi}
    limits: {memory: 64Mi}
  volumeMounts:
    - {name: secrets, mountPath: /secrets, readOnly: true}
    - {name: run, mountPath: /run/a2g-executor}
{{- end }}

{{/* The volumes of the configuration, of the Secrets and of the copies of those, in memory. */}}
{{- define "a2g.configVolumes" -}}
- name: config
  configMap:
    name: {{ include "a2g.fullname" . }}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      {{- range .Values.secrets.names }}
      - secret:
          name: {{ . }}
      {{- end }}
- name: run
  emptyDir: {medium: Memory, sizeLimit: 16Mi}
{{- end }}
