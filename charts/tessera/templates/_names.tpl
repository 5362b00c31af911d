{{/* Labels of every object. Arguments: root, component (empty for none). */}}
{{- define "tessera.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name (.root.Chart.Version | replace "+" "_") }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: tessera
{{ include "tessera.selector" . }}
{{- end }}

{{/* Labels that never change: selectors. */}}
{{- define "tessera.selector" -}}
app.kubernetes.io/name: tessera
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{/* A reference to an image. Arguments: repository, tag, digest. */}}
{{- define "tessera.reference" -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag }}
{{- end -}}
{{- end }}

{{- define "tessera.image" -}}
{{- include "tessera.reference" (dict "repository" .Values.image.repository "tag" (.Values.image.tag | default .Chart.AppVersion) "digest" .Values.image.digest) -}}
{{- end }}

{{/*
The kube-scheduler of the cluster's own version. Providers add to the version (v1.33.2-eks-1234567, v1.33.2+k3s1), and
images are named without what they add.
*/}}
{{- define "tessera.kubeSchedulerImage" -}}
{{- $image := .Values.scheduler.kubeScheduler.image -}}
{{- $found := regexFind "^v?[0-9]+[.][0-9]+[.][0-9]+" .Capabilities.KubeVersion.Version | trimPrefix "v" -}}
{{- if and (not $found) (not $image.tag) (not $image.digest) -}}
{{- fail (printf "the cluster's version %q names no kube-scheduler: set scheduler.kubeScheduler.image.tag" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- include "tessera.reference" (dict "repository" $image.repository "tag" ($image.tag | default (printf "v%s" $found)) "digest" $image.digest) -}}
{{- end }}

{{/* Namespaces that the webhook and the policy leave alone: as a JSON list, and as a list of CEL. */}}
{{- define "tessera.excluded" -}}
{{- append .Values.webhook.excludedNamespaces .Release.Namespace | uniq | sortAlpha | toJson -}}
{{- end }}

{{- define "tessera.excludedCel" -}}
{{- include "tessera.excluded" . | replace "\"" "'" | replace "," ", " -}}
{{- end }}
