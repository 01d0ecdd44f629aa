package firecracker

// What follows is the part of Firecracker's API that the driver uses. The contract
// test compares it with the published definitions. Firecracker refuses fields that
// it does not know.

// Paths.
const (
	pathInstance       = "/"
	pathVersion        = "/version"
	pathLogger         = "/logger"
	pathMachineConfig  = "/machine-config"
	pathBootSource     = "/boot-source"
	pathDrives         = "/drives/" // and the drive's id
	pathVsock          = "/vsock"
	pathEntropy        = "/entropy"
	pathSerial         = "/serial"
	pathActions        = "/actions"
	pathVM             = "/vm"
	pathSnapshotCreate = "/snapshot/create"
	pathSnapshotLoad   = "/snapshot/load"
)

type fault struct {
	Message string `json:"fault_message"`
}

type versionReply struct {
	Version string `json:"firecracker_version"`
}

type instanceInfo struct {
	State string `json:"state"`
}

type logger struct {
	Level     string `json:"level"`
	ShowLevel bool   `json:"show_level"`
}

type machineConfig struct {
	VCPUs     int `json:"vcpu_count"`
	MemoryMiB int `json:"mem_size_mib"`
}

type bootSource struct {
	Kernel    string `json:"kernel_image_path"`
	Initramfs string `json:"initrd_path"`
	Args      string `json:"boot_args"`
}

// A drive that is the root device would have Firecracker write to the kernel's
// command line; ours is mounted by the agent.
type drive struct {
	ID       string `json:"drive_id"`
	Path     string `json:"path_on_host"`
	Root     bool   `json:"is_root_device"`
	ReadOnly bool   `json:"is_read_only"`
	Cache    string `json:"cache_type"`
	Engine   string `json:"io_engine"`
}

type vsockDevice struct {
	CID  uint32 `json:"guest_cid"`
	Path string `json:"uds_path"`
}

type entropyDevice struct {
	Limiter rateLimiter `json:"rate_limiter"`
}

type rateLimiter struct {
	Bandwidth tokenBucket `json:"bandwidth"`
}

// A tokenBucket is refilled with Size bytes in RefillMS milliseconds.
type tokenBucket struct {
	Size     int64 `json:"size"`
	RefillMS int64 `json:"refill_time"`
}

type serialDevice struct {
	Path string `json:"serial_out_path"`
	// Limiter is known from 1.16 on.
	Limiter *tokenBucket `json:"rate_limiter,omitempty"`
}

type action struct {
	Type string `json:"action_type"`
}

type vmState struct {
	State string `json:"state"`
}

// What some fields say.
const (
	statePaused     = "Paused"
	stateResumed    = "Resumed"
	actionStart     = "InstanceStart"
	snapshotFull    = "Full"
	memoryFromFile  = "File"
	cacheUnsafe     = "Unsafe"
	engineSync      = "Sync"
	levelOfMessages = "Warning"
)

type snapshotCreate struct {
	Type   string `json:"snapshot_type"`
	State  string `json:"snapshot_path"`
	Memory string `json:"mem_file_path"`
}

type snapshotLoad struct {
	State  string        `json:"snapshot_path"`
	Memory memoryBackend `json:"mem_backend"`
	Resume bool          `json:"resume_vm"`
}

type memoryBackend struct {
	Type string `json:"backend_type"`
	Path string `json:"backend_path"`
}
