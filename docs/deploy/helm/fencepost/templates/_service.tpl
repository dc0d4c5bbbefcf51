{{- /*
All objects of one service; the caller gives a dictionary: root, name (of the program), port,
values, and own (its settings).
*/ -}}
{{- define "fencepost.labels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "fencepost.scheme" -}}
{{ if .Values.insecureListen }}http{{ else }}https{{ end }}
{{- end }}

{{- define "fencepost.service" -}}
{{- $values := .root.Values }}
{{- $fullname := printf "%s-%s" .root.Release.Name .name }}
{{- $settings := dict
      "listen" (printf "0.0.0.0:%d" (int .port))
      "host-name" (list $fullname (printf "%s.%s.svc" $fullname .root.Release.Namespace))
      "namespace" ($values.lockNamespace | default "default")
      "store" $values.store
      "token-key-file" "/etc/fencepost/token-keys/token-keys.txt" }}
{{- with $values.secrets.storePassword }}
{{- $_ := set $settings "store-password-file" "/etc/fencepost/store/password" }}
{{- end }}
{{- if $values.insecureListen }}
{{- $_ := set $settings "insecure-listen" true }}
{{- else }}
{{- $_ := set $settings "tls-cert" "/etc/fencepost/tls/tls.crt" }}
{{- $_ := set $settings "tls-key" "/etc/fencepost/tls/tls.key" }}
{{- $_ := set $settings "access-file" "/etc/fencepost/access/access.toml" }}
{{- end }}
{{- $settings = mustMergeOverwrite $settings .own (.values.settings | default dict) }}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ $fullname }}
  labels: {{- include "fencepost.labels" . | nindent 4 }}
data:
  # JSON's strings, numbers and lists are TOML's too.
  settings.toml: |
    {{- range $key, $value := $settings }}
    {{ $key }} = {{ toJson $value }}
    {{- end }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ $fullname }}
  labels: {{- include "fencepost.labels" . | nindent 4 }}
spec:
  selector: {{- include "fencepost.labels" . | nindent 4 }}
  ports:
    - name: api
      port: {{ .port }}
      targetPort: api
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $fullname }}
  labels: {{- include "fencepost.labels" . | nindent 4 }}
spec:
  replicas: {{ .values.replicas }}
  selector:
    matchLabels: {{- include "fencepost.labels" . | nindent 6 }}
  template:
    metadata:
      labels: {{- include "fencepost.labels" . | nindent 8 }}
      annotations:
        # New settings start new pods. Certificates and the access file are reloaded.
        fencepost/settings: {{ toJson $settings | sha256sum }}
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        fsGroup: 65532
        seccompProfile: {type: RuntimeDefault}
      # Requests in flight have 10 s, then tasks have 10 s.
      terminationGracePeriodSeconds: 30
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels: {{- include "fencepost.labels" . | nindent 14 }}
      containers:
        - name: {{ .name }}
          image: {{ $values.image.registry }}/{{ .name }}:{{ $values.image.tag | default .root.Chart.AppVersion }}
          imagePullPolicy: {{ $values.image.pullPolicy | default "IfNotPresent" }}
          args: [--config, /etc/fencepost/settings/settings.toml]
          ports:
            - {name: api, containerPort: {{ .port }}}
          startupProbe:
            httpGet: {path: /livez, port: api, scheme: {{ include "fencepost.scheme" .root | upper }}}
            periodSeconds: 1
            failureThreshold: 60
          livenessProbe:
            httpGet: {path: /livez, port: api, scheme: {{ include "fencepost.scheme" .root | upper }}}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          readinessProbe:
            httpGet: {path: /readyz, port: api, scheme: {{ include "fencepost.scheme" .root | upper }}}
            periodSeconds: 2
            timeoutSeconds: 2
          resources: {{- toYaml .values.resources | nindent 12 }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
          volumeMounts:
            - {name: settings, mountPath: /etc/fencepost/settings, readOnly: true}
            - {name: token-keys, mountPath: /etc/fencepost/token-keys, readOnly: true}
            {{- if not $values.insecureListen }}
            - {name: tls, mountPath: /etc/fencepost/tls, readOnly: true}
            - {name: access, mountPath: /etc/fencepost/access, readOnly: true}
            {{- end }}
            {{- with $values.secrets.storePassword }}
            - {name: store, mountPath: /etc/fencepost/store, readOnly: true}
            {{- end }}
      volumes:
        - name: settings
          configMap: {name: {{ $fullname }}}
        - name: token-keys
          secret: {secretName: {{ $values.secrets.tokenKeys }}, defaultMode: 0440}
        {{- if not $values.insecureListen }}
        - name: tls
          secret: {secretName: {{ $values.secrets.tls }}, defaultMode: 0440}
        - name: access
          secret: {secretName: {{ $values.secrets.access }}, defaultMode: 0440}
        {{- end }}
        {{- with $values.secrets.storePassword }}
        - name: store
          secret: {secretName: {{ . }}, defaultMode: 0440}
        {{- end }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $fullname }}
  labels: {{- include "fencepost.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{- include "fencepost.labels" . | nindent 6 }}
{{- if $values.networkPolicy.enabled }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ $fullname }}
  labels: {{- include "fencepost.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels: {{- include "fencepost.labels" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
  ingress:
    - ports:
        - {protocol: TCP, port: api}
      from:
        - namespaceSelector: {}
          podSelector:
            matchLabels: {{- toYaml $values.networkPolicy.clientLabels | nindent 14 }}
        - podSelector:
            matchLabels:
              app.kubernetes.io/instance: {{ .root.Release.Name }}
  egress:
    - ports:
        - {protocol: UDP, port: 53}
        - {protocol: TCP, port: 53}
    - ports:
        {{- range $values.networkPolicy.storePorts }}
        - {protocol: TCP, port: {{ int . }}}
        {{- end }}
    - ports:
        - {protocol: TCP, port: 7420}
        - {protocol: TCP, port: 7421}
      to:
        - podSelector:
            matchLabels:
              app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}
{{- end }}
