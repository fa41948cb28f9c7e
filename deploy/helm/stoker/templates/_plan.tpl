{{/* What follows from the values, as stoker/cluster/plan.py and pod_file.py have it. */}}

{{- define "stoker.name" -}}
{{ .Values.name | default .Release.Name }}
{{- end }}

{{- define "stoker.instance" -}}
{{ include "stoker.name" . }}{{ with .Values.version_name }}-{{ . }}{{ end }}
{{- end }}

{{/* The Service of the pods; that which is called as the service is its router's, where it has one. */}}
{{- define "stoker.serversService" -}}
{{- if and .Values.router (not .Values.version_name) -}}
{{ include "stoker.name" . }}-servers
{{- else -}}
{{ include "stoker.instance" . }}
{{- end -}}
{{- end }}

{{- define "stoker.takesKeys" -}}
{{- $server := .Values.server | default dict -}}
{{- if or (ne (toString (get $server "auth")) "false") (eq (toString (get $server "token_auth")) "true") }}yes{{ end -}}
{{- end }}

{{- define "stoker.gpus" -}}
{{- if kindIs "invalid" .Values.gpus -}}
{{ if or .Values.gpu_resource .Values.dra }}1{{ else }}0{{ end }}
{{- else -}}
{{ int .Values.gpus }}
{{- end -}}
{{- end }}

{{- define "stoker.gpuName" -}}
{{ .Values.gpu_resource | default "nvidia.com/gpu" }}
{{- end }}

{{- define "stoker.surge" -}}
{{- $gpus := int (include "stoker.gpus" .) -}}
{{ if $gpus }}{{ div (int .Values.spare_gpus) $gpus }}{{ else }}1{{ end }}
{{- end }}

{{- define "stoker.fewest" -}}
{{ ternary 1 (int .Values.min_replicas) (kindIs "invalid" .Values.min_replicas) }}
{{- end }}

{{- define "stoker.most" -}}
{{ int (.Values.max_replicas | default (max 10 (int (include "stoker.fewest" .)))) }}
{{- end }}

{{- define "stoker.grpcPort" -}}
{{- $own := int (get (.Values.server | default dict) "grpc_port") -}}
{{ if $own }}{{ $own }}{{ else if .Values.grpc }}9000{{ else }}0{{ end }}
{{- end }}

{{- define "stoker.timeoutMs" -}}
{{- $all := get (.Values.server | default dict) "timeout_ms" | default 60000 -}}
{{- $longest := 0 -}}
{{- range .Values.serves }}{{ $longest = max $longest (int (get . "timeout_ms" | default $all)) }}{{ end -}}
{{ $longest }}
{{- end }}

{{- define "stoker.loadTimeoutS" -}}
{{- $all := get (.Values.server | default dict) "load_timeout_s" | default 600 -}}
{{- $sum := 0.0 -}}
{{- range .Values.serves }}{{ $sum = addf $sum (float64 (get . "load_timeout_s" | default $all)) }}{{ end -}}
{{ $sum }}
{{- end }}

{{- define "stoker.drainS" -}}
{{- $server := .Values.server | default dict -}}
{{ if hasKey $server "drain_grace_s" }}{{ get $server "drain_grace_s" }}{{ else }}{{ ternary 5 10 .Values.router }}{{ end }}
{{- end }}

{{/* Amounts: a number to a thousandth; GB of 10⁹ bytes. */}}
{{- define "stoker.thousandths" -}}
{{- $milli := int (max 1 (int (round (mulf 1000 (float64 .)) 0))) -}}
{{ if mod $milli 1000 }}{{ $milli }}m{{ else }}{{ div $milli 1000 }}{{ end }}
{{- end }}

{{- define "stoker.gigabytes" -}}
{{- $mega := int (max 1 (int (round (mulf 1000 (float64 .)) 0))) -}}
{{ if mod $mega 1000 }}{{ $mega }}M{{ else }}{{ div $mega 1000 }}G{{ end }}
{{- end }}

{{- define "stoker.selector" -}}
app.kubernetes.io/name: stoker
app.kubernetes.io/instance: {{ include "stoker.instance" . }}
{{- end }}

{{- define "stoker.labels" -}}
{{ include "stoker.selector" . }}
app.kubernetes.io/component: server
app.kubernetes.io/managed-by: stoker
{{- with .Values.version_name }}
app.kubernetes.io/part-of: {{ include "stoker.name" $ }}
stoker.dev/version: {{ . }}
{{- end }}
{{- end }}

{{/* Takes the root and the name of the object. */}}
{{- define "stoker.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "stoker.labels" .root | nindent 2 }}
{{- end }}

{{/* Of an object that all versions of an endpoint have together. */}}
{{- define "stoker.sharedMetadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  app.kubernetes.io/name: stoker
  app.kubernetes.io/part-of: {{ include "stoker.name" .root }}
  app.kubernetes.io/managed-by: stoker
{{- end }}

{{/* The models as the deployment file of the pod has them, below `models`. */}}
{{- define "stoker.models" -}}
{{- $models := list -}}
{{- $name := include "stoker.name" . -}}
{{- range .Values.serves -}}
{{- $model := deepCopy . -}}
{{- if not (hasKey $model "name") -}}
{{- if gt (len $.Values.serves) 1 }}{{ fail (printf "serves: %s needs a name, as there are several models" .path) }}{{ end -}}
{{- $_ := set $model "name" $name -}}
{{- end -}}
{{- range $key := list "path" "model_dir" "environment" "sample_input" -}}
{{- with get $model $key -}}
{{- if contains ".." . }}{{ fail (printf "%s cannot be in the pod, whose models are below /models" .) }}{{ end -}}
{{- $_ := set $model $key (printf "/models/%s" (trimPrefix "/models/" .)) -}}
{{- end -}}
{{- end -}}
{{- if and $.Values.cpu_cores (not (hasKey $model "threads")) -}}
{{- $_ := set $model "threads" (max 1 (int (floor $.Values.cpu_cores))) -}}
{{- end -}}
{{- $models = append $models $model -}}
{{- end -}}
{{ toYaml (dict "models" $models) }}
{{- end }}

{{- define "stoker.podFile" -}}
{{- $server := omit (deepCopy (.Values.server | default dict)) "host" "port" "grpc_port" "keys_dir" -}}
{{- $file := dict "host" "0.0.0.0" "port" 8080 "drain_grace_s" (ternary 5 10 .Values.router) "connection_age_s" 120 -}}
{{- with int (include "stoker.grpcPort" .) }}{{ $_ := set $file "grpc_port" . }}{{ end -}}
{{- if include "stoker.takesKeys" . }}{{ $_ := set $file "keys_dir" "/run/secrets/stoker" }}{{ end -}}
{{- $gpus := int (include "stoker.gpus" .) -}}
{{- if not $gpus -}}
{{- $_ := set $file "device" "cpu" -}}
{{- else if contains "mig" (include "stoker.gpuName" .) -}}
{{- $_ := set $file "device" "auto" -}}
{{- else -}}
{{- $devices := list -}}
{{- range until $gpus }}{{ $devices = append $devices (printf "cuda:%d" .) }}{{ end -}}
{{- $_ := set $file "device" $devices -}}
{{- end -}}
{{- with .Values.cpu_cores -}}
{{- $_ := set $file "frontends" (max 1 (min 8 (div (int (floor .)) 2))) -}}
{{- end -}}
{{- $file = mergeOverwrite $file $server -}}
{{ toYaml (merge $file (include "stoker.models" . | fromYaml)) }}
{{- end }}
