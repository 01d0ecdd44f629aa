package daemon

import (
	"encoding/json"
	"fmt"
	"regexp"
	"time"

	"github.com/bouvet-run/bouvet"
)

// ID names a sandbox through all machines that it is on, one after the other: "i" and
// 20 characters of [a-z0-9] that hold 100 random bits. It is never used again.
type ID string

var idPattern = regexp.MustCompile(`^i[a-z0-9]{20}$`)

// ParseID reads the one form of an ID that there is.
func ParseID(s string) (ID, error) {
	if !idPattern.MatchString(s) {
		return "", fmt.Errorf("%w: %.80q is not the ID of a sandbox", ErrNotFound, s)
	}
	return ID(s), nil
}

// Owner is who sandboxes, snapshots and templates belong to. Whatever belongs to
// another does not exist for it: every method that takes both an Owner and an ID fails
// with ErrNotFound then.
type Owner struct {
	// ID is the identity, "local" for the user of the unix socket, who is the
	// administrator and sees everything.
	ID string `json:"id"`
	// Name is what the administrator calls it.
	Name string `json:"name"`
	// Admin says that everything belongs to it.
	Admin bool `json:"admin"`
}

// State says whether a sandbox has a machine. One that has ended is not told of.
type State string

// The states of a sandbox.
const (
	StateRunning State = "running"
	StatePaused  State = "paused"
)

// OnTimeout says what becomes of a sandbox when its time is over.
type OnTimeout string

// What becomes of a sandbox when its time is over.
const (
	TimeoutKills  OnTimeout = "kill"
	TimeoutPauses OnTimeout = "pause"
)

// Sandbox describes a sandbox at one moment. It is a copy.
type Sandbox struct {
	ID ID
	// Owner is the identity of its owner.
	Owner string
	// Template is the ID of the template or snapshot that it was made of, Alias its name.
	Template, Alias string
	State           State
	// StartedAt is when it was created, or last resumed; EndAt when its time is over.
	StartedAt, EndAt time.Time
	VCPUs            int
	MemoryMiB        int
	// DiskMiB is the size of its writable layer, MemoryMiB where that is in memory.
	DiskMiB  int
	Metadata map[string]string
	// Env is the environment of all its commands.
	Env map[string]string
	// AccessToken is what requests to port 49983 carry: 43 characters of base64url.
	// Empty when the sandbox is not secure: then anybody who knows its ID may.
	AccessToken string
	// TrafficToken is what requests to other ports carry, if not everybody may send any.
	TrafficToken string
	OnTimeout    OnTimeout
	// PauseMemory says whether the end of its time keeps its memory; AutoResume whether
	// traffic wakes it.
	PauseMemory, AutoResume bool
	Network                 Network
}

// Network is what a user asked for in the way of network. Until there is one it is kept
// and told again.
type Network struct {
	AllowInternet *bool
	AllowOut      []string
	DenyOut       []string
	// AllowPublicTraffic is nil for yes.
	AllowPublicTraffic *bool
	// MaskRequestHost is the Host header that servers inside see; ${PORT} stands for
	// the port.
	MaskRequestHost string
	// Rest is what else was in the request, as it came.
	Rest json.RawMessage
}

// CreateOptions describe a sandbox to create.
type CreateOptions struct {
	// Template is the ID or the name of a template or snapshot, a tag with a colon
	// perhaps; "base" stands for the default image.
	Template string
	// TTL is the time that it has; DefaultTTL when 0.
	TTL         time.Duration
	Metadata    map[string]string
	Env         map[string]string
	Secure      bool
	OnTimeout   OnTimeout // TimeoutKills when empty
	PauseMemory bool
	AutoResume  bool
	Network     Network
	// MemoryMiB and VCPUs are 0 for what the template says.
	MemoryMiB, VCPUs int
}

// Limits on what a user may ask for.
const (
	// DefaultTTL is the time of a sandbox that asks for none, MaxTTL the most.
	DefaultTTL = 5 * time.Minute
	MaxTTL     = 24 * time.Hour
	// MaxMetadata bounds the pairs, MaxMetadataBytes the bytes of Metadata, as of Env.
	MaxMetadata      = 256
	MaxMetadataBytes = 64 << 10
	// MaxPage bounds the entries of a list.
	MaxPage = 100
	// MaxForkCount bounds the copies of one Fork.
	MaxForkCount = 100
)

// Filter chooses sandboxes of a list. The zero value chooses all.
type Filter struct {
	// Metadata are pairs that it must have.
	Metadata map[string]string
	// States are those that it may be in; empty for any.
	States []State
	// Template is the ID or name that it was made of.
	Template     string
	StartedAfter time.Time
	// OldestFirst turns the order, which is by StartedAt and then ID, newest first.
	OldestFirst bool
	// Limit bounds the page: 1 to MaxPage, 0 for MaxPage. Token is what the page before
	// gave.
	Limit int
	Token string
}

// Page is a part of a list.
type Page struct {
	Sandboxes []Sandbox
	// Next is the Token of the next page, empty on the last.
	Next string
	// Running counts the running ones of the whole list.
	Running int
}

// Snapshot describes a saved sandbox, which is a template, too.
type Snapshot struct {
	// ID is what CreateOptions.Template takes: "<20 characters>:default".
	ID string
	// Names are those that the user gave it: "name:default".
	Names     []string
	Sandbox   ID
	CreatedAt time.Time
	VCPUs     int
	MemoryMiB int
}

// Forked is one copy that Fork made, or why it could not.
type Forked struct {
	Sandbox Sandbox
	Err     error
}

// Metric is what a sandbox used at one moment.
type Metric struct {
	Time                time.Time
	VCPUs               int
	CPUPercent          float64
	MemUsed, MemTotal   int64 // bytes
	MemCache            int64 // bytes
	DiskUsed, DiskTotal int64 // bytes
}

// Event is an entry of the log that every sandbox has.
type Event struct {
	Seq     int64
	Time    time.Time
	Sandbox ID
	// Kind is "created", "resumed", "paused", "killed", "snapshot", "fork", "timeout",
	// "exec", "file", "adopted", "lost", ...
	Kind string
	// By is whose doing it was: the ID of an owner, or "daemon".
	By string
	// Detail says more, for people.
	Detail string
}

// Template is what sandboxes are made of.
type Template struct {
	ID        string
	Names     []string
	Image     string // in the image store
	VCPUs     int
	MemoryMiB int
	CreatedAt time.Time
	Snapshot  bool
}

// Use is a running sandbox in the hands of a request of the data plane.
type Use struct {
	Sandbox Sandbox
	// Machine is where it runs. It is not to be kept beyond Release.
	Machine *bouvet.Sandbox
	// Ended is closed when the sandbox is killed, or paused, or its machine has died:
	// responses are cut then.
	Ended <-chan struct{}
	// Release ends the use. It may be called more than once.
	Release func()
}
