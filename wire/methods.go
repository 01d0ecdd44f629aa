package wire

import "slices"

// Methods of the JSON-RPC port. The first six are the seed's; the rest are
// Bouvet's extensions, which an older agent answers with CodeMethodNotFound.
const (
	MethodPing      = "ping"
	MethodExec      = "exec"
	MethodExecCode  = "exec_code"
	MethodReadFile  = "read_file"
	MethodWriteFile = "write_file"
	MethodListDir   = "list_dir"

	MethodInfo      = "info"
	MethodStat      = "stat"
	MethodMakeDir   = "make_dir"
	MethodMove      = "move"
	MethodRemove    = "remove"
	MethodProcesses = "processes"
	MethodSignal    = "signal"
	MethodFreeze    = "freeze"
	MethodThaw      = "thaw"

	// These four turn their connection into a stream of binary frames after the
	// response line; see docs/PROTOCOL.md, "Streams".
	MethodDownload = "download"
	MethodUpload   = "upload"
	MethodForward  = "forward"
	MethodWatch    = "watch"
)

// Capabilities an agent may name in its Info.
const (
	CapExecExtended = "exec.extended" // user, timeout_ms, started, signal, no_stdin, cols/rows
	CapExecDetach   = "exec.detach"   // detach, attach, processes
	CapExecBinary   = "exec.binary"   // framing "binary"
	CapFiles        = "files"         // stat, make_dir, move, remove, base64 and offsets
	CapStreams      = "streams"       // download, upload, forward
	CapWatch        = "watch"
	CapFreeze       = "freeze" // freeze, thaw
)

// PingResult answers ping.
type PingResult struct {
	Pong bool `json:"pong"`
}

// ExecParams are the parameters of exec. All but Cmd are extensions.
type ExecParams struct {
	// Cmd is a command line for "sh -c".
	Cmd string `json:"cmd"`
	ExecOptions
}

// ExecCodeParams are the parameters of exec_code. All but Lang and Code are
// extensions.
type ExecCodeParams struct {
	// Lang is a name of the language table, in any case.
	Lang string `json:"lang"`
	Code string `json:"code"`
	ExecOptions
}

// ExecOptions are the optional parameters of exec and exec_code (extension).
type ExecOptions struct {
	Dir string `json:"dir,omitempty"`
	// Env holds KEY=value pairs, added to the agent's own environment.
	Env  []string `json:"env,omitempty"`
	User string   `json:"user,omitempty"`
	// TimeoutMS ends the command's process group after that many milliseconds.
	TimeoutMS uint64 `json:"timeout_ms,omitempty"`
}

// ExecResult answers exec and exec_code. An output stream longer than MaxOutput
// is cut at a character boundary and ends in TruncatedSuffix.
type ExecResult struct {
	// ExitCode is -1 for a command that could not be started or was ended by a
	// signal.
	ExitCode int32  `json:"exit_code"`
	Stdout   string `json:"stdout"`
	Stderr   string `json:"stderr"`
	// TimedOut is present only when the request had timeout_ms and it struck.
	TimedOut bool `json:"timed_out,omitempty"`
}

// Success reports whether the command ended with exit code 0.
func (r *ExecResult) Success() bool { return r.ExitCode == 0 }

// EncodingBase64 is the value of an encoding field for content in base64; empty
// means UTF-8 text.
const EncodingBase64 = "base64"

// ReadFileParams are the parameters of read_file. All but Path are extensions.
type ReadFileParams struct {
	Path string `json:"path"`
	// Encoding "base64" allows content that is not UTF-8.
	Encoding string `json:"encoding,omitempty"`
	// Offset and Length choose a part, in bytes; Length 0 means to the end. With
	// either given the limit of MaxContent holds for the part, not the file.
	Offset uint64 `json:"offset,omitempty"`
	Length uint64 `json:"length,omitempty"`
}

// ReadFileResult answers read_file.
type ReadFileResult struct {
	Content string `json:"content"`
	// Encoding and Size (of the whole file) are present only when the request
	// used an extension.
	Encoding string  `json:"encoding,omitempty"`
	Size     *uint64 `json:"size,omitempty"`
}

// WriteFileParams are the parameters of write_file. All but Path and Content are
// extensions.
type WriteFileParams struct {
	Path     string `json:"path"`
	Content  string `json:"content"`
	Encoding string `json:"encoding,omitempty"`
	// Offset, when present, writes into the existing file at that byte instead of
	// replacing it.
	Offset *uint64 `json:"offset,omitempty"`
	// Mode, when present, sets the permission bits (0..07777).
	Mode *uint32 `json:"mode,omitempty"`
	// User, when given, owns the file and the directories made for it.
	User string `json:"user,omitempty"`
}

// WriteFileResult answers write_file.
type WriteFileResult struct {
	Success bool `json:"success"`
}

// PathParams are the parameters of stat, list_dir and remove.
type PathParams struct {
	Path string `json:"path"`
}

// FileEntry is one name of a directory. Size is 0 for all but regular files.
type FileEntry struct {
	Name  string `json:"name"`
	IsDir bool   `json:"is_dir"`
	Size  uint64 `json:"size"`
}

// ListDirResult answers list_dir, sorted by name.
type ListDirResult struct {
	Entries []FileEntry `json:"entries"`
}

// Types of a FileInfo.
const (
	TypeFile    = "file"
	TypeDir     = "dir"
	TypeSymlink = "symlink"
	TypeOther   = "other"
)

// FileInfo answers stat. A symbolic link is described itself; Target is its text.
type FileInfo struct {
	Name string `json:"name"`
	Path string `json:"path"`
	Type string `json:"type"`
	Size uint64 `json:"size"`
	// Mode holds the permission, setuid, setgid and sticky bits (0..07777).
	Mode   uint32 `json:"mode"`
	UID    uint32 `json:"uid"`
	GID    uint32 `json:"gid"`
	User   string `json:"user,omitempty"`
	Group  string `json:"group,omitempty"`
	Target string `json:"target,omitempty"`
	// ModTimeNS is the modification time in nanoseconds since 1970.
	ModTimeNS int64 `json:"mtime_ns"`
}

// MakeDirParams are the parameters of make_dir, which makes missing parents too.
type MakeDirParams struct {
	Path string  `json:"path"`
	Mode *uint32 `json:"mode,omitempty"`
	User string  `json:"user,omitempty"`
}

// MakeDirResult answers make_dir; Created is false for a directory that was
// already there.
type MakeDirResult struct {
	Created bool `json:"created"`
}

// MoveParams are the parameters of move, which replaces the target as rename(2)
// does and makes its missing parents. Between file systems it copies regular
// files and refuses directories.
type MoveParams struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// Empty answers methods that have nothing to say.
type Empty struct{}

// ProtocolVersion counts incompatible changes of the extensions' fields and
// frames. A method never changes its meaning: what means something else is called
// something else.
const ProtocolVersion = 1

// Info answers info.
type Info struct {
	// Agent is the program's name, "bouvet-agent".
	Agent   string `json:"agent"`
	Version string `json:"version"`
	// Protocol is the ProtocolVersion that the capabilities are of. A host that
	// knows another takes the agent for one without capabilities.
	Protocol     int      `json:"protocol"`
	Capabilities []string `json:"capabilities"`
	// PID is the agent's own process ID; 1 when it is the guest's init.
	PID int `json:"pid"`
}

// Has reports whether the agent named capability c.
func (i *Info) Has(c string) bool {
	return slices.Contains(i.Capabilities, c)
}

// Process describes one process that the agent started for a host and that still
// runs or whose end is still remembered.
type Process struct {
	// ID is the name given with detach, or empty.
	ID      string   `json:"id,omitempty"`
	PID     int      `json:"pid"`
	Command []string `json:"command"`
	Dir     string   `json:"dir,omitempty"`
	User    string   `json:"user,omitempty"`
	TTY     bool     `json:"tty,omitempty"`
	// StartedMS is when it started, in milliseconds since 1970 by the guest's clock.
	StartedMS int64 `json:"started_ms"`
	Running   bool  `json:"running"`
	Detached  bool  `json:"detached,omitempty"`
	// ExitCode is meaningful when Running is false.
	ExitCode int32 `json:"exit_code,omitempty"`
}

// ProcessesResult answers processes, in the order of their start.
type ProcessesResult struct {
	Processes []Process `json:"processes"`
}

// SignalParams are the parameters of signal: one of ID and PID names a process
// that the agent started; others are refused.
type SignalParams struct {
	ID     string `json:"id,omitempty"`
	PID    int    `json:"pid,omitempty"`
	Signal int    `json:"signal"`
	// Group sends it to the whole process group.
	Group bool `json:"group,omitempty"`
}

// FreezeResult answers freeze.
type FreezeResult struct {
	// Stopped is how many processes are held.
	Stopped int `json:"stopped"`
}

// Bounds of ThawParams.Entropy, in bytes.
const (
	MinEntropy = 32
	MaxEntropy = 512
)

// ThawParams are the parameters of thaw.
type ThawParams struct {
	// Entropy are MinEntropy to MaxEntropy random bytes, credited to the guest kernel's
	// pool and used at once.
	Entropy []byte `json:"entropy"`
	// UnixNS is the time, in nanoseconds since 1970.
	UnixNS int64 `json:"unix_ns"`
	// Hostname is the guest's new host name; empty leaves it as it is.
	Hostname string `json:"hostname,omitempty"`
	// Clone says that the guest is a copy: its machine-id is renewed, the random seed
	// kept for the next boot removed, and connections that were open when it was frozen
	// end, with the commands that run for them.
	Clone bool `json:"clone,omitempty"`
}

// DownloadParams are the parameters of download.
type DownloadParams struct {
	Path   string `json:"path"`
	Offset uint64 `json:"offset,omitempty"`
	// Length bounds the bytes sent; 0 means to the end of the file.
	Length uint64 `json:"length,omitempty"`
}

// UploadParams are the parameters of upload. The bytes go into a temporary file
// beside the target, which replaces it when all have arrived.
type UploadParams struct {
	Path string  `json:"path"`
	Mode *uint32 `json:"mode,omitempty"`
	User string  `json:"user,omitempty"`
}

// UploadResult is the payload of the agent's FrameEnd after an upload.
type UploadResult struct {
	Size uint64 `json:"size"`
}

// ForwardParams are the parameters of forward: a TCP port on the guest's loopback.
type ForwardParams struct {
	Port uint16 `json:"port"`
}

// WatchParams are the parameters of watch.
type WatchParams struct {
	Path      string `json:"path"`
	Recursive bool   `json:"recursive,omitempty"`
}

// Operations of a WatchEvent.
const (
	WatchCreate = "create"
	WatchWrite  = "write"
	WatchRemove = "remove"
	WatchRename = "rename"
	WatchChmod  = "chmod"
	// WatchOverflow means that events were lost.
	WatchOverflow = "overflow"
)

// WatchEvent is the payload of a FrameControl of a watch stream. Name is relative
// to the watched path.
type WatchEvent struct {
	Op   string `json:"op"`
	Name string `json:"name"`
}
