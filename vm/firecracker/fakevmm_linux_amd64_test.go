package firecracker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The fake's exit statuses are Firecracker's.
const (
	fakeExitError = 1
	fakeExitArgs  = 153
)

// fakeFormat is the fake's version of snapshots.
const fakeFormat = "7.0.0"

// A fakeVMM answers Firecracker's API as strictly as that does.
type fakeVMM struct {
	setup   fakeSetup
	version Version
	root    int // a descriptor of the jail's root
	user    int

	mu         sync.Mutex
	state      string // of the machine
	configured map[string]bool
	memoryMiB  float64
	args       string
	drives     []fakeDrive
	vsock      string
	guest      *fakeGuest
}

// fakeFirecracker is the whole program.
func fakeFirecracker(args []string) int {
	flags, _, err := parseFlags(args, "id api-sock start-time-us start-time-cpu-us parent-cpu-time-us", "version snapshot-version")
	if err != nil {
		fmt.Fprintln(os.Stderr, "Arguments parsing error:", err)
		return fakeExitArgs
	}
	exe, _ := os.Executable()
	dir := os.Getenv(fakeDirVar)
	if dir == "" {
		dir = exe[:strings.LastIndexByte(exe, '/')]
	}
	setup := readSetup(dir)
	if _, ok := flags["version"]; ok {
		fmt.Printf("Firecracker v%s\n\n", setup.Version)
		return 0
	}
	if _, ok := flags["snapshot-version"]; ok {
		fmt.Printf("v%s\n", fakeFormat)
		return 0
	}
	v := &fakeVMM{setup: setup, state: "Not started", configured: map[string]bool{}}
	if v.version, err = ParseVersion(setup.Version); err == nil {
		v.user, err = strconv.Atoi(os.Getenv(fakeUserVar))
	}
	if err == nil {
		v.root, err = unix.Open(os.Getenv(fakeRootVar), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	if err == nil {
		err = loopback()
	}
	if err == nil {
		err = v.serve(flags["api-sock"])
	}
	fmt.Fprintln(os.Stderr, "Error:", err)
	return fakeExitError
}

// loopback brings up lo, as a guest's first process does.
func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
}

// path is that of a file of the jail.
func (v *fakeVMM) path(name string) string { return fmt.Sprintf("/proc/self/fd/%d%s", v.root, name) }

// asUser does f with the jail's user's rights to files.
func (v *fakeVMM) asUser(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, _ = unix.SetfsgidRetGid(v.user)
	_, _ = unix.SetfsuidRetUid(v.user)
	defer func() {
		_, _ = unix.SetfsuidRetUid(0)
		_, _ = unix.SetfsgidRetGid(0)
	}()
	return f()
}

// open opens a file as Firecracker does.
func (v *fakeVMM) open(name string, flags int) (f *os.File, err error) {
	if !strings.HasPrefix(name, "/") {
		return nil, fmt.Errorf("%q is outside the jail", name)
	}
	err = v.asUser(func() error {
		f, err = os.OpenFile(v.path(name), flags, 0o600)
		return err
	})
	return f, err
}

// listen binds a socket, which must not be there.
func (v *fakeVMM) listen(name string) (l net.Listener, err error) {
	err = v.asUser(func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), name)
		defer func() { _ = f.Close() }()
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: v.path(name)}); err != nil {
			return err
		}
		if err := unix.Listen(fd, 128); err != nil {
			return err
		}
		l, err = net.FileListener(f)
		return err
	})
	return l, err
}

func (v *fakeVMM) serve(socket string) error {
	if v.setup.Fault == "no socket" {
		select {}
	}
	if v.setup.Fault == "ends at once" {
		return errors.New("it is not my day")
	}
	l, err := v.listen(socket)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: v, ReadHeaderTimeout: time.Minute}
	return server.Serve(l)
}

// A refusedError is answered with status 400.
type refusedError string

func (e refusedError) Error() string { return string(e) }

func refusef(format string, args ...any) error { return refusedError(fmt.Sprintf(format, args...)) }

// ServeHTTP implements http.Handler.
func (v *fakeVMM) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err == nil && v.setup.At == r.URL.Path {
		if v.fail(w) {
			return
		}
	}
	if err == nil && len(body) > 51200 {
		err = refusef("Request payload with size %d is larger than the limit of 51200 allowed by server.", len(body))
	}
	var reply any
	if err == nil {
		v.mu.Lock()
		reply, err = v.handle(r.Method, r.URL.Path, body)
		v.mu.Unlock()
	}
	w.Header().Set("Content-Type", "application/json")
	switch {
	case err != nil:
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(map[string]string{"fault_message": err.Error()})
	case reply != nil:
		_ = json.NewEncoder(w).Encode(reply)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

// fail does what was asked to go wrong. It reports whether there is an answer.
func (v *fakeVMM) fail(w http.ResponseWriter) bool {
	switch v.setup.Fault {
	case "refuses":
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"fault_message":"this is not to be"}`)
	case "babbles":
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, strings.Repeat("nonsense\x1b[2J", 20000))
	case "never ends":
		for {
			if _, err := io.WriteString(w, strings.Repeat(" ", 4096)); err != nil {
				return true
			}
		}
	case "resets":
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_, _ = io.WriteString(conn, "HTTP/1.1 204 No Con")
			_ = conn.Close()
		}
	case "hangs":
		select {}
	case "exits":
		fmt.Println("I have had enough")
		os.Exit(fakeExitError)
	case "seccomp":
		os.Exit(exitSeccomp)
	case "signal":
		_ = unix.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	default:
		return false
	}
	return true
}

// handle is the state machine.
func (v *fakeVMM) handle(method, path string, body []byte) (any, error) {
	if method == http.MethodGet {
		switch path {
		case "/version":
			return map[string]string{"firecracker_version": v.setup.Version}, nil
		case "/":
			return map[string]string{"app_name": "Firecracker", "id": "x", "state": v.state, "vmm_version": v.setup.Version}, nil
		}
	}
	key := path
	if strings.HasPrefix(path, "/drives/") {
		key = "/drives/{drive_id}"
	}
	endpoint, ok := fakeEndpoints[method+" "+key]
	if !ok {
		return nil, refusef("Invalid request method and/or path: %s %s", method, path)
	}
	var fields map[string]any
	dec := json.NewDecoder(bytes.NewReader(body))
	if err := dec.Decode(&fields); err != nil || dec.More() {
		return nil, refusef("An error occurred when deserializing the json body of a request: %v.", err)
	}
	if err := endpoint.check(fields, v.version); err != nil {
		return nil, refusef("An error occurred when deserializing the json body of a request: %v.", err)
	}
	started := v.state != "Not started"
	switch {
	case endpoint.when == beforeStart && started:
		return nil, refusef("The requested operation is not supported after starting the microVM.")
	case endpoint.when == afterStart && !started:
		return nil, refusef("The requested operation is not supported before starting the microVM.")
	}
	if err := endpoint.do(v, path, fields); err != nil {
		return nil, err
	}
	v.configured[key] = true
	return nil, nil
}

// boot starts the guest.
func (v *fakeVMM) boot() error {
	if !v.configured["/boot-source"] {
		return refusef("Cannot start microvm without kernel configuration.")
	}
	if err := v.bootDrives(); err != nil {
		return err
	}
	return v.run("Running")
}

func (v *fakeVMM) run(state string) error {
	v.state = state
	if err := v.countLifetime(); err != nil {
		return err
	}
	if v.guest != nil {
		v.guest.start()
	}
	if v.configured["/serial"] {
		if f, err := v.open("/console", os.O_WRONLY|unix.O_NONBLOCK); err == nil {
			_, _ = fmt.Fprintln(f, "Linux version fake")
			_ = f.Close()
		}
	}
	return nil
}

// attach binds the vsock's socket.
func (v *fakeVMM) attach(path string) error {
	l, err := v.listen(path)
	if err != nil {
		return refusef("Cannot create backend for vsock device: UnixBind(%v)", err)
	}
	v.vsock, v.guest = path, newFakeGuest(l, v.setup.Fault == "guest is silent")
	return nil
}

// readable checks that a file is there and may be opened like that.
func (v *fakeVMM) readable(path any, flags int) error {
	f, err := v.open(fmt.Sprint(path), flags)
	if err != nil {
		return refusef("Unable to open the file: %v", err)
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return refusef("The file %v is empty or none, %v", path, err)
	}
	return nil
}

// A fakeState is what the fake saves of a machine.
type fakeState struct {
	Format    string
	Vsock     string
	MemoryMiB float64
	Drives    []fakeDrive
}

func (v *fakeVMM) save(statePath, memoryPath string) error {
	if v.state != "Paused" {
		return refusef("Cannot save the Vmm state: NotPaused")
	}
	data, err := json.Marshal(fakeState{fakeFormat, v.vsock, v.memoryMiB, v.drives})
	if err != nil {
		return err
	}
	state, err := v.open(statePath, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return refusef("Cannot perform an io operation on the snapshot backing file: %v", err)
	}
	defer func() { _ = state.Close() }()
	memory, err := v.open(memoryPath, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return refusef("Cannot perform open on the memory backing file: %v", err)
	}
	defer func() { _ = memory.Close() }()
	if _, err := state.Write(data); err != nil {
		return err
	}
	if _, err := memory.WriteAt([]byte("guest memory"), 1<<20); err != nil {
		return err
	}
	if v.guest != nil {
		v.guest.forget()
	}
	return memory.Truncate(int64(v.memoryMiB) << 20)
}

// load takes over what save saved. A guest that ran is the agent anew.
func (v *fakeVMM) load(f map[string]any) error {
	for name := range v.configured {
		if name != "/logger" && name != "/metrics" && name != "/serial" {
			return refusef("Loading a microVM snapshot not allowed after configuring boot-specific resources: %s", name)
		}
	}
	backend, _ := f["mem_backend"].(map[string]any)
	state, err := v.open(fmt.Sprint(f["snapshot_path"]), os.O_RDONLY)
	if err != nil {
		return refusef("Failed to open the snapshot file: %v", err)
	}
	defer func() { _ = state.Close() }()
	var s fakeState
	if err := json.NewDecoder(state).Decode(&s); err != nil || s.Format != fakeFormat {
		return refusef("Failed to load the snapshot: %v", err)
	}
	memory, err := v.open(fmt.Sprint(backend["backend_path"]), os.O_RDONLY)
	if err != nil {
		return refusef("Failed to open the memory file: %v", err)
	}
	defer func() { _ = memory.Close() }()
	if info, err := memory.Stat(); err != nil || info.Size() != int64(s.MemoryMiB)<<20 {
		return refusef("Memory size mismatch, %v", err)
	}
	if err := v.restoreDrives(s.Drives); err != nil {
		return err
	}
	if err := v.attach(s.Vsock); err != nil {
		return err
	}
	v.memoryMiB = s.MemoryMiB
	if resume, _ := f["resume_vm"].(bool); !resume {
		return refusef("the fake does not load what is to stand still")
	}
	return v.run("Running")
}
