{{- define "autothrottle.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end -}}
{{- end }}

{{- define "autothrottle.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "autothrottle.labels" -}}
{{ include "autothrottle.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* The directory of the scores in the volume that the nightly score and the page share; empty without it. */}}
{{- define "autothrottle.scores" -}}
{{- if and .Values.score.enabled .Values.score.existingClaim }}/var/lib/autothrottle-scores{{ end -}}
{{- end }}

{{- define "autothrottle.credentials" -}}
{{- if .Values.credentials.existingSecret }}{{ .Values.credentials.existingSecret }}
{{- else if .Values.credentials.data }}{{ include "autothrottle.name" . }}{{ end -}}
{{- end }}

{{- define "autothrottle.scheme" -}}
{{ if .Values.tls.secretName }}HTTPS{{ else }}HTTP{{ end }}
{{- end }}

{{- /* Security context of a container. */}}
{{- define "autothrottle.container" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* An egress rule; without ports there is no rule, and without peers it admits any address. The arguments are a
destination, the protocols, and the addresses and URLs whose ports are added. */}}
{{- define "autothrottle.destination" -}}
{{- $ports := list }}
{{- range .destination.ports }}{{ $ports = append $ports (int .) }}{{ end }}
{{- range .addresses }}
{{- with regexFind ":[0-9]+(/|$)" . }}{{ $ports = append $ports (. | trimPrefix ":" | trimSuffix "/" | int) }}
{{- else }}{{ if hasPrefix "https:" . }}{{ $ports = append $ports 443 }}{{ else if hasPrefix "http:" . }}{{ $ports = append $ports 80 }}{{ end }}
{{- end }}
{{- end }}
{{- if $ports }}
- ports:
    {{- range $port := uniq $ports }}
    {{- range $.protocols }}
    - {protocol: {{ . }}, port: {{ $port }}}
    {{- end }}
    {{- end }}
  {{- with .destination.to }}
  to: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* The egress rules; `names` are the destinations beside DNS. */}}
{{- define "autothrottle.egress" -}}
{{- $root := .root }}
{{- $options := dict "zookeeper" (list "zk-addr") "kafka" (list "bootstrap-servers" "kafka-bootstrap-controllers")
      "metricsSource" (list "prometheus-url" "scrape-url" "datadog-url") }}
{{- $egress := $root.Values.networkPolicy.egress }}
{{- range $name := .names }}
{{- $addresses := list }}
{{- range get $options $name | default list }}
{{- with get $root.Values.config . }}{{ $addresses = concat $addresses (kindIs "string" . | ternary (splitList "," (toString .)) .) }}{{ end }}
{{- end }}
{{- if eq $name "otlp" }}
{{- range $root.Values.env }}
{{- if hasPrefix "OTEL_EXPORTER_OTLP" .name }}{{ $addresses = append $addresses (toString .value) }}{{ end }}
{{- end }}
{{- end }}
{{- include "autothrottle.destination" (dict "destination" (get $egress $name) "protocols" (list "TCP") "addresses" $addresses) }}
{{- end }}
{{- include "autothrottle.destination" (dict "destination" $egress.dns "protocols" (list "UDP" "TCP") "addresses" (list)) }}
{{- end }}

{{- /* The options: those of `config`, and those that follow from the other values. */}}
{{- define "autothrottle.options" -}}
{{- $options := dict "api-listen" "0.0.0.0:8080" "grpc-listen" "0.0.0.0:8090" "api-hosts" (list
      (include "autothrottle.name" .)
      (printf "%s.%s" (include "autothrottle.name" .) .Release.Namespace)
      (printf "%s.%s.svc" (include "autothrottle.name" .) .Release.Namespace)) }}
{{- if .Values.zookeeper.enabled }}
{{- $_ := set $options "zk-addr" (list (printf "%s-zookeeper:2181" (include "autothrottle.name" .))) }}
{{- end }}
{{- if not (or .Values.zookeeper.enabled (get .Values.config "zk-addr") (hasKey .Values.config "state-store")) }}
{{- if .Release.IsUpgrade }}
{{- fail "no state store is named. By default, earlier versions of this chart kept autothrottle's state in zookeeper:2181, and this one would leave it behind. Fix: config.zk-addr=[zookeeper:2181] keeps it there; config.state-store=kafka if the state is in Kafka" }}
{{- end }}
{{- $_ := set $options "state-store" "kafka" }}
{{- end }}
{{- with .Values.tls.secretName }}
{{- $_ := set $options "tls-cert" "/etc/autothrottle/tls/tls.crt" }}
{{- $_ := set $options "tls-key" "/etc/autothrottle/tls/tls.key" }}
{{- $_ := set $options "tls-ca" "/etc/autothrottle/tls/ca.crt" }}
{{- $_ := set $options "tls-server-name" $.Values.tls.serverName }}
{{- $_ := set $options "certificate-roles" (merge (dict $.Values.tls.serverName "service") $.Values.tls.certificateRoles) }}
{{- else }}
{{- if not .Values.insecureListen }}
{{- fail "tls.secretName is empty, so callers of the gRPC API have no credentials. Fix: name a Secret, or set insecureListen=true" }}
{{- end }}
{{- $_ := set $options "insecure-listen" true }}
{{- end }}
{{- if .Values.tokens.secretName }}
{{- $_ := set $options "api-tokens-file" (printf "/etc/autothrottle/tokens/%s" .Values.tokens.key) }}
{{- end }}
{{- if .Values.kafkaClient.secretName }}
{{- $_ := set $options "kafka-client-config" (printf "/etc/autothrottle/kafka/%s" .Values.kafkaClient.key) }}
{{- end }}
{{- if hasKey .Values.config "decisions" }}
{{- $_ := set $options "decisions-spool" "/var/lib/autothrottle/spool" }}
{{- end }}
{{- with include "autothrottle.scores" . }}
{{- $_ := set $options "scores" . }}
{{- end }}
{{- /* JSON's strings, numbers, booleans and lists are TOML, too. Options take a map as a string of JSON. */}}
{{- range $name, $value := mergeOverwrite (deepCopy .Values.config) $options }}
{{ $name }} = {{ kindIs "map" $value | ternary ($value | toJson | toJson) ($value | toJson) }}
{{- end }}
{{- end }}
