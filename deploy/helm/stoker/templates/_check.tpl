{{/* What contradicts itself, in the words of `stoker kubernetes render`. */}}
{{- define "stoker.check" -}}
{{- if not .Values.image }}{{ fail "no image is named; say with image what the pods run" }}{{ end -}}
{{- if not .Values.serves }}{{ fail "nothing is served; list models in serves" }}{{ end -}}
{{- if .Values.autoscaler -}}
{{- if .Values.replicas }}{{ fail (printf "replicas cannot be given beside autoscaler %s, which chooses them; leave one out" .Values.autoscaler) }}{{ end -}}
{{- if gt (int (include "stoker.fewest" .)) (int (include "stoker.most" .)) }}{{ fail "min_replicas must not be above max_replicas" }}{{ end -}}
{{- if and (eq (int (include "stoker.fewest" .)) 0) (or (ne (toString .Values.autoscaler) "stoker") (not .Values.router) .Values.version_name) }}{{ fail "min_replicas 0 needs autoscaler stoker and a router, in which requests wait for the first pod, and no versions" }}{{ end -}}
{{- else -}}
{{- range list "min_replicas" "max_replicas" "target_utilization" "autoscale_refresh_s" -}}
{{- if get $.Values . }}{{ fail (printf "%s must not be given unless an autoscaler is" .) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if and (eq (toString .Values.autoscaler) "keda") .Values.version_name }}{{ fail "KEDA cannot tell the versions of an endpoint apart, whose metrics have the same names; use autoscaler hpa" }}{{ end -}}
{{- $gpus := int (include "stoker.gpus" .) -}}
{{- if and .Values.dra .Values.gpu_resource }}{{ fail "dra and gpu_resource are two ways to the same GPUs; leave one out" }}{{ end -}}
{{- if and (eq $gpus 0) (or .Values.dra .Values.gpu_resource .Values.spare_gpus) }}{{ fail "gpus 0 contradicts gpu_resource, dra and spare_gpus; leave those out" }}{{ end -}}
{{- if and (contains "mig" (include "stoker.gpuName" .)) (gt $gpus 1) }}{{ fail "a process uses one MIG device; have one a pod and more replicas" }}{{ end -}}
{{- if and .Values.spare_gpus (lt (int .Values.spare_gpus) $gpus) }}{{ fail "spare_gpus are too few for a pod" }}{{ end -}}
{{- if and (eq (include "stoker.surge" .) "0") (has (toString .Values.max_unavailable) (list "0" "0%")) }}{{ fail "max_unavailable 0 needs a GPU to spare for each rollout; say so with spare_gpus" }}{{ end -}}
{{- if .Values.version_name -}}
{{- if not (or .Values.gateway .Values.router) }}{{ fail "a Service cannot split requests by weights; name a Gateway that can: gateway NAMESPACE/NAME, or have a router" }}{{ end -}}
{{- if and .Values.router (has .Values.version_name (list "router" "servers")) }}{{ fail (printf "%s is what the router's own objects are called; call the version otherwise" (include "stoker.instance" .)) }}{{ end -}}
{{- with .Values.traffic -}}
{{- if not (hasKey . $.Values.version_name) }}{{ fail (printf "traffic has no %s, which these pods are; name all versions, those with 0 too" $.Values.version_name) }}{{ end -}}
{{- if not (hasKey . (toString $.Values.default_version)) }}{{ fail "default_version must name one of the versions of traffic, whose order a chart does not know" }}{{ end -}}
{{- $sum := 0.0 -}}
{{- range $version, $share := . -}}
{{- $hundredths := round (mulf (float64 $share) 100) 6 -}}
{{- if ne $hundredths (round $hundredths 0) }}{{ fail (printf "traffic of %s is %v; have percentages from 0 to 100 with at most two digits after the point" $version $share) }}{{ end -}}
{{- $sum = round (addf $sum (float64 $share)) 6 -}}
{{- end -}}
{{- if gt $sum 100.0 }}{{ fail (printf "traffic adds up to %v percent; have at most 100" $sum) }}{{ end -}}
{{- end -}}
{{- else if or .Values.traffic .Values.default_version }}{{ fail "traffic and default_version are of an endpoint's versions; say which this is with version_name" }}{{ end -}}
{{- if and .Values.router (ne (include "stoker.grpcPort" .) "0") }}{{ fail "the router speaks no gRPC; leave out gRPC, or let a gateway lead to the pods instead of a router" }}{{ end -}}
{{- if and .Values.router_image (not .Values.router) }}{{ fail "router_image is that of a router's pods; leave it out, or have a router" }}{{ end -}}
{{- if and .Values.hostnames (not .Values.gateway) }}{{ fail "hostnames are those of a route; give its gateway" }}{{ end -}}
{{- if and (get (.Values.server | default dict) "collect") (not .Values.collect_to) }}{{ fail "what is collected would end with its pod; name a claim with collect_to" }}{{ end -}}
{{- $later := get (.Values.server | default dict) "later_mb" }}
{{- if and $later (not .Values.later_to) }}{{ fail "requests that are answered later would end with their pod; name a claim with later_to" }}{{ end -}}
{{- if and .Values.later_to (not $later) }}{{ fail "later_to is of requests that are answered later; give them room with later_mb" }}{{ end -}}
{{- end }}
