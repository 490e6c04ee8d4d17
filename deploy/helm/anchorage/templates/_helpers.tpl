{{- define "anchorage.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "anchorage.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "anchorage.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "anchorage.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "anchorage.releaseSelector" -}}
app.kubernetes.io/name: {{ include "anchorage.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- /* Of one component: (list root "api") */ -}}
{{- define "anchorage.selector" -}}
{{ include "anchorage.releaseSelector" (index . 0) }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "anchorage.labels" -}}
{{- $root := index . 0 -}}
{{ include "anchorage.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- /* (list image default-tag); a digest wins over a tag */ -}}
{{- define "anchorage.image" -}}
{{- $image := index . 0 -}}
{{- if not $image.repository -}}
{{- fail "image.repository is empty: build the image with `docker build`, push it to a registry that your nodes can read, and name it, as --set image.repository=registry.example/anchorage" -}}
{{- end -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default (index . 1) $image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "anchorage.gpuImage" -}}
{{- $image := deepCopy .Values.gpuWorker.image -}}
{{- $_ := set $image "repository" (default .Values.image.repository $image.repository) -}}
{{- if and .Values.image.digest (not $image.tag) (not $image.digest) -}}
{{- fail "gpuWorker.image needs a tag or a digest: image.digest names only the image without CUDA" -}}
{{- end -}}
{{- include "anchorage.image" (list $image (printf "%s-cuda" (default .Chart.AppVersion .Values.image.tag))) -}}
{{- end -}}

{{- /* Helm reads whole numbers as floats: 4294967296 must not become 4.294967296e+09 */ -}}
{{- define "anchorage.value" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) -}}
{{- int64 . | toString | quote -}}
{{- else -}}
{{- toString . | quote -}}
{{- end -}}
{{- end -}}

{{- /* The number of metrics ports of a worker: one for each device */ -}}
{{- define "anchorage.devices" -}}
{{- ternary .Values.gpuWorker.gpus 1 .Values.gpuWorker.enabled -}}
{{- end -}}

{{- define "anchorage.secretVariable" -}}
- name: {{ index . 0 }}
  valueFrom:
    secretKeyRef:
      name: {{ (index . 1).existingSecret }}
      key: {{ (index . 1).key }}
{{- end -}}

{{- /* Of a process without a GPU, whose default limit of memory is 4 GiB */ -}}
{{- define "anchorage.cpuSettings" -}}
model_bytes: "2147483648"
{{- end -}}

{{- /* Of every process: (list root component default-settings) */ -}}
{{- define "anchorage.env" -}}
{{- $root := index . 0 -}}
{{- $settings := mergeOverwrite (deepCopy (index . 2)) $root.Values.settings (index . 1).settings -}}
{{ include "anchorage.secretVariable" (list "ANCHORAGE_DATABASE_URL" $root.Values.database) }}
{{ include "anchorage.secretVariable" (list "ANCHORAGE_REDIS_URL" $root.Values.redis) }}
# torch has as many threads as the container may use cores; it would count those of the machine.
- name: OMP_NUM_THREADS
  valueFrom:
    resourceFieldRef:
      resource: limits.cpu
{{- if $root.Values.models.existingClaim }}
- name: ANCHORAGE_MODELS_DIR
  value: /models
{{- end }}
{{- if $settings.hub_models }}
- name: HF_HUB_OFFLINE
  value: "0"
{{- end }}
{{- range $name, $value := $settings }}
- name: ANCHORAGE_{{ upper $name }}
  value: {{ include "anchorage.value" $value }}
{{- end }}
{{- end -}}

{{- /* The variables of a container: (list root component the-chart's-own). extraEnv of a component
wins over that of every process; neither may name a variable that the chart sets. */ -}}
{{- define "anchorage.withExtraEnv" -}}
{{- $root := index . 0 -}}
{{- $own := index . 2 -}}
{{- $component := default list (index . 1).extraEnv -}}
{{- $names := list -}}
{{- range $component }}{{ $names = append $names .name }}{{ end -}}
{{- $extra := list -}}
{{- range $root.Values.extraEnv -}}
{{- if not (has .name $names) }}{{ $extra = append $extra . }}{{ end -}}
{{- end -}}
{{- $extra = concat $extra $component -}}
{{- $set := list -}}
{{- range fromYamlArray $own }}{{ $set = append $set .name }}{{ end -}}
{{- range $extra -}}
{{- if has .name $set -}}
{{- fail (printf "extraEnv must not name %s: the chart sets it. Use `settings` or the value that it comes from" .name) -}}
{{- end -}}
{{- end -}}
{{ $own }}
{{- with $extra }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "anchorage.mounts" -}}
- name: data
  mountPath: /data
- name: tmp
  mountPath: /tmp
{{- if .Values.models.existingClaim }}
- name: models
  mountPath: /models
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "anchorage.volumes" -}}
- name: data
  persistentVolumeClaim:
    claimName: {{ default (printf "%s-data" (include "anchorage.fullname" .)) .Values.data.existingClaim }}
- name: tmp
  emptyDir:
    sizeLimit: {{ .Values.temporarySize }}
{{- with .Values.models.existingClaim }}
- name: models
  persistentVolumeClaim:
    claimName: {{ . }}
    readOnly: true
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* Of every Pod */ -}}
{{- define "anchorage.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* Where the Pods of a component run */ -}}
{{- define "anchorage.placement" -}}
{{- $fields := dict -}}
{{- range list "priorityClassName" "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" -}}
{{- if index $ . -}}
{{- $_ := set $fields . (index $ .) -}}
{{- end -}}
{{- end -}}
{{- with $fields -}}
{{- toYaml . -}}
{{- end -}}
{{- end -}}

{{- define "anchorage.podMetadata" -}}
labels:
  {{- include "anchorage.labels" (list (index . 0) (index . 1)) | nindent 2 }}
  {{- with (index . 2).podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with (index . 2).podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* A worker is alive as long as it answers with its metrics. */ -}}
{{- define "anchorage.workerProbes" -}}
startupProbe:
  httpGet: {path: /metrics, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 4
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /metrics, port: metrics}
  periodSeconds: 20
  timeoutSeconds: 10
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /metrics, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 4
{{- end -}}

{{- /* Refuses bounds that Kubernetes would refuse: (list component autoscaling) */ -}}
{{- define "anchorage.checkBounds" -}}
{{- $scaling := index . 1 -}}
{{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) -}}
{{- fail (printf "%s.autoscaling.minReplicas is above maxReplicas" (index . 0)) -}}
{{- end -}}
{{- end -}}

{{- define "anchorage.disruptionBudget" -}}
{{- $root := index . 0 -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "anchorage.fullname" $root }}-{{ index . 1 }}
  labels:
    {{- include "anchorage.labels" (list $root (index . 1)) | nindent 4 }}
spec:
  maxUnavailable: {{ (index . 2).podDisruptionBudget.maxUnavailable }}
  selector:
    matchLabels:
      {{- include "anchorage.selector" (list $root (index . 1)) | nindent 6 }}
{{- end -}}
