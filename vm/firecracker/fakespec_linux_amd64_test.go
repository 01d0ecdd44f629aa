package firecracker

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
)

// When an endpoint may be used.
const (
	anyTime = iota
	beforeStart
	afterStart
)

// A fakeEndpoint is one that the fake knows. It is written down independently of
// what the driver sends.
type fakeEndpoint struct {
	when int
	fields
	do func(v *fakeVMM, path string, f map[string]any) error
}

// fields are those of an object: a type, then "!" if it is required, and what it may
// say. "since:" and a version begins one that came later.
type fields map[string]string

// objects are those inside others.
var objects = map[string]fields{
	"limiter": {"bandwidth": "bucket", "ops": "bucket"},
	"bucket":  {"size": "int!", "refill_time": "int!", "one_time_burst": "int"},
	"backend": {"backend_type": "string! File Uffd", "backend_path": "string!"},
	"uds":     {"uds_path": "string!"},
}

func nothing(*fakeVMM, string, map[string]any) error { return nil }

var fakeEndpoints = map[string]*fakeEndpoint{
	"PUT /logger": {anyTime, fields{"level": "string Error Warning Info Debug Trace Off", "log_path": "string", "show_level": "bool", "show_log_origin": "bool", "module": "string"}, nothing},
	"PUT /machine-config": {
		beforeStart,
		fields{"vcpu_count": "int!", "mem_size_mib": "int!", "smt": "bool", "track_dirty_pages": "bool", "huge_pages": "string None 2M"},
		func(v *fakeVMM, _ string, f map[string]any) error {
			v.memoryMiB, _ = f["mem_size_mib"].(float64)
			if n, _ := f["vcpu_count"].(float64); n < 1 || n > 32 || v.memoryMiB < 1 {
				return refusef("The vCPU number is invalid! The vCPU number can only be 1 or an even number when SMT is enabled.")
			}
			return nil
		},
	},
	"PUT /boot-source": {
		beforeStart,
		fields{"kernel_image_path": "string!", "initrd_path": "string", "boot_args": "string"},
		func(v *fakeVMM, _ string, f map[string]any) error {
			v.args, _ = f["boot_args"].(string)
			if len(v.args) > 2048 || strings.Contains(v.args, "\n") {
				return refusef("The kernel command line is invalid")
			}
			if err := v.readable(f["kernel_image_path"], os.O_RDONLY); err != nil {
				return err
			}
			return v.readable(f["initrd_path"], os.O_RDONLY)
		},
	},
	"PUT /drives/{drive_id}": {
		beforeStart,
		fields{"drive_id": "string!", "is_root_device": "bool!", "path_on_host": "string", "is_read_only": "bool", "cache_type": "string Unsafe Writeback", "io_engine": "string Sync Async", "partuuid": "string", "rate_limiter": "limiter", "socket": "string"},
		func(v *fakeVMM, path string, f map[string]any) error { return v.attachDrive(path, f) },
	},
	"PUT /vsock": {
		beforeStart,
		fields{"guest_cid": "int!", "uds_path": "string!", "vsock_id": "string"},
		func(v *fakeVMM, _ string, f map[string]any) error {
			if cid, _ := f["guest_cid"].(float64); cid < 3 {
				return refusef("Invalid CID")
			}
			return v.attach(fmt.Sprint(f["uds_path"]))
		},
	},
	"PUT /entropy": {beforeStart, fields{"rate_limiter": "limiter"}, nothing},
	"PUT /serial": {
		beforeStart,
		fields{"serial_out_path": "string", "rate_limiter": "since:1.16.0 bucket"},
		func(v *fakeVMM, _ string, f map[string]any) error {
			c, err := v.open(fmt.Sprint(f["serial_out_path"]), os.O_WRONLY)
			if err != nil {
				return refusef("Unable to open the serial output: %v", err)
			}
			return c.Close()
		},
	},
	"PUT /actions": {
		anyTime,
		fields{"action_type": "string! FlushMetrics InstanceStart SendCtrlAltDel"},
		func(v *fakeVMM, _ string, f map[string]any) error {
			if f["action_type"] != "InstanceStart" {
				return refusef("the fake has no %v", f["action_type"])
			}
			if v.state != "Not started" {
				return refusef("The requested operation is not supported after starting the microVM.")
			}
			return v.boot()
		},
	},
	"PATCH /vm": {
		afterStart,
		fields{"state": "string! Paused Resumed"},
		func(v *fakeVMM, _ string, f map[string]any) error {
			if f["state"] == "Paused" {
				v.state = "Paused"
				v.guest.pause()
			} else {
				v.state = "Running"
				v.guest.resume()
			}
			return nil
		},
	},
	"PUT /snapshot/create": {
		afterStart,
		fields{"mem_file_path": "string!", "snapshot_path": "string!", "snapshot_type": "string Full Diff"},
		func(v *fakeVMM, _ string, f map[string]any) error {
			return v.save(fmt.Sprint(f["snapshot_path"]), fmt.Sprint(f["mem_file_path"]))
		},
	},
	"PUT /snapshot/load": {
		beforeStart,
		fields{
			"snapshot_path": "string!", "mem_file_path": "string", "mem_backend": "backend", "resume_vm": "bool", "enable_diff_snapshots": "bool",
			"track_dirty_pages": "bool", "clock_realtime": "bool", "vsock_override": "since:1.16.0 uds",
		},
		func(v *fakeVMM, _ string, f map[string]any) error {
			if (f["mem_file_path"] == nil) == (f["mem_backend"] == nil) {
				return refusef("missing field: either `mem_backend` or `mem_file_path` is required")
			}
			return v.load(f)
		},
	},
}

// check refuses what version v would refuse.
func (known fields) check(have map[string]any, v Version) error {
	for name, value := range have {
		what, ok := known[name]
		if since, rest, found := strings.Cut(strings.TrimPrefix(what, "since:"), " "); strings.HasPrefix(what, "since:") && found {
			from, err := ParseVersion(since)
			if err != nil {
				return err
			}
			what, ok = rest, v.Compare(from) >= 0
		}
		if !ok {
			return fmt.Errorf("unknown field `%s`", name)
		}
		if err := checkValue(what, value, v); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for name, what := range known {
		if kind, _, _ := strings.Cut(what, " "); strings.HasSuffix(kind, "!") && have[name] == nil {
			return fmt.Errorf("missing field `%s`", name)
		}
	}
	return nil
}

func checkValue(what string, value any, v Version) error {
	words := strings.Fields(what)
	ok := false
	switch kind := strings.TrimSuffix(words[0], "!"); kind {
	case "string":
		var s string
		s, ok = value.(string)
		ok = ok && (len(words) == 1 || slices.Contains(words[1:], s))
	case "int":
		var n float64
		n, ok = value.(float64)
		ok = ok && n == float64(int64(n)) && n >= 0
	case "bool":
		_, ok = value.(bool)
	default:
		if inner, isObject := value.(map[string]any); isObject {
			return objects[kind].check(inner, v)
		}
	}
	if !ok {
		text, _ := json.Marshal(value)
		return fmt.Errorf("invalid value %s, expected %s", text, what)
	}
	return nil
}
