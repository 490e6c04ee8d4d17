{{- define "anchorage.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Of one component: (list root "api") */ -}}
{{- define "anchorage.selector" -}}
app.kubernetes.io/name: {{ (index . 0).Chart.Name }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "anchorage.labels" -}}
{{- $root := index . 0 -}}
{{ include "anchorage.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "anchorage.image" -}}
{{- if not .Values.image.repository -}}
{{- fail "image.repository is empty: build the image with `docker build`, push it to a registry that your nodes can read, and name it, as --set image.repository=registry.example/anchorage" -}}
{{- end -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}

{{- /* Helm reads whole numbers as floats: 4294967296 must not become 4.294967296e+09 */ -}}
{{- define "anchorage.value" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) -}}
{{- int64 . | toString | quote -}}
{{- else -}}
{{- toString . | quote -}}
{{- end -}}
{{- end -}}

{{- define "anchorage.secretVariable" -}}
- name: {{ index . 0 }}
  valueFrom:
    secretKeyRef:
      name: {{ (index . 1).existingSecret }}
      key: {{ (index . 1).key }}
{{- end -}}

{{- /* Of every process. The limit of memory is 4 GiB, so models may have 2. */ -}}
{{- define "anchorage.env" -}}
{{- $settings := mergeOverwrite (dict "model_bytes" "2147483648") .Values.settings -}}
{{ include "anchorage.secretVariable" (list "ANCHORAGE_DATABASE_URL" .Values.database) }}
{{ include "anchorage.secretVariable" (list "ANCHORAGE_REDIS_URL" .Values.redis) }}
# torch has as many threads as the container may use cores; it would count those of the machine.
- name: OMP_NUM_THREADS
  valueFrom:
    resourceFieldRef:
      resource: limits.cpu
{{- if $settings.hub_models }}
- name: HF_HUB_OFFLINE
  value: "0"
{{- end }}
{{- range $name, $value := $settings }}
- name: ANCHORAGE_{{ upper $name }}
  value: {{ include "anchorage.value" $value }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* Of every container */ -}}
{{- define "anchorage.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - name: data
    mountPath: /data
  - name: tmp
    mountPath: /tmp
{{- end -}}

{{- /* Of every Pod: (list root component) */ -}}
{{- define "anchorage.pod" -}}
{{- $root := index . 0 -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- toYaml $root.Values.podSecurityContext | nindent 2 }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with (index . 1).nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with (index . 1).tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
volumes:
  - name: data
    persistentVolumeClaim:
      claimName: {{ $root.Values.data.existingClaim }}
  - name: tmp
    emptyDir:
      sizeLimit: {{ $root.Values.temporarySize }}
{{- end -}}
