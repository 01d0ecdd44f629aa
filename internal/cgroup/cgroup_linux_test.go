package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// fakeHost lays out files below a fresh root.
func fakeHost(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, data := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const (
	v1Mounts = `30 20 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
31 20 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
32 20 0:28 / /sys/fs/cgroup/pids rw,relatime shared:9 - cgroup cgroup rw,pids
33 20 0:29 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`
	v2Mounts = "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
	all      = "cpuset cpu io memory pids\n"
)

func TestFindCgroups(t *testing.T) {
	// group is the files of a v2 cgroup.
	group := func(files map[string]string, dir, controllers string, writable bool) {
		files[dir+"/cgroup.controllers"] = controllers
		if writable {
			files[dir+"/cgroup.procs"], files[dir+"/cgroup.subtree_control"] = "", ""
		}
	}
	host := func(mounts, own string) map[string]string {
		return map[string]string{"proc/self/mountinfo": mounts, "proc/self/cgroup": own}
	}
	v1 := host(v1Mounts, "0::/\n")
	for _, dir := range []string{"memory", "cpu,cpuacct", "pids"} {
		v1["sys/fs/cgroup/"+dir+"/tasks"] = ""
	}
	root := host(v2Mounts, "0::/system.slice/bouvet.service\n")
	group(root, "sys/fs/cgroup", all, true)
	user := host(v2Mounts, "0::/user.slice/user-1000.slice/user@1000.service/app.slice/shell.scope\n")
	group(user, "sys/fs/cgroup", all, false)
	group(user, "sys/fs/cgroup/user.slice", all, false)
	group(user, "sys/fs/cgroup/user.slice/user-1000.slice", all, false)
	group(user, "sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service", "cpu memory pids\n", true)
	group(user, "sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice", "cpu memory pids\n", true)
	session := host(v2Mounts, "0::/user.slice/session-3.scope\n")
	group(session, "sys/fs/cgroup", all, false)
	group(session, "sys/fs/cgroup/user.slice", all, false)
	group(session, "sys/fs/cgroup/user.slice/session-3.scope", all, false)
	partly := host(v2Mounts, "0::/\n")
	group(partly, "sys/fs/cgroup", "cpu pids\n", true)
	hybrid := host("33 20 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n", "0::/\n")
	group(hybrid, "sys/fs/cgroup/unified", "\n", true)

	for _, tt := range []struct {
		name  string
		files map[string]string
		v2    bool
		dirs  []string
	}{
		{"v1", v1, false, []string{"/sys/fs/cgroup/memory/bouvet/id", "/sys/fs/cgroup/cpu,cpuacct/bouvet/id", "/sys/fs/cgroup/pids/bouvet/id"}},
		{"v2 root", root, true, []string{"/sys/fs/cgroup/bouvet/id"}},
		{"v2 delegated to a user", user, true, []string{"/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/bouvet/id"}},
		{"v2 not delegated", session, false, nil},
		{"v2 without memory", partly, false, nil},
		{"hybrid without controllers", hybrid, false, nil},
		{"no cgroups", host("", ""), false, nil},
		{"malformed mountinfo", host("nonsense\n1 2 3 - \n", ""), false, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// Root passes every check for writing, so what must not be writable does
			// not exist.
			root := fakeHost(t, tt.files)
			tree := find(root, "")
			var want []string
			for _, dir := range tt.dirs {
				want = append(want, root+dir)
			}
			if got := tree.Dirs("id"); tree.v2 != tt.v2 || !slices.Equal(got, want) {
				t.Errorf("got v2 %v, %q, want %v, %q", tree.v2, got, tt.v2, want)
			}
			if got, want := tree.Limits("memory"), len(tt.dirs) > 0; got != want {
				t.Errorf("limits memory: got %v, want %v", got, want)
			}
		})
	}
}

func TestCgroupSettings(t *testing.T) {
	for _, tt := range []struct {
		name string
		tree Tree
		want []string
	}{
		{"v1", Tree{bases: map[string]string{"memory": "memory", "cpu": "cpu", "pids": "pids"}}, []string{
			"memory/p/id/memory.limit_in_bytes=67108864", "memory/p/id/memory.memsw.limit_in_bytes=67108864",
			"cpu/p/id/cpu.cfs_period_us=100000", "cpu/p/id/cpu.cfs_quota_us=300000", "pids/p/id/pids.max=99",
			"memory/p/id/cgroup.procs=7", "cpu/p/id/cgroup.procs=7", "pids/p/id/cgroup.procs=7",
		}},
		{"v2", Tree{v2: true, bases: map[string]string{"": "."}}, []string{
			"cgroup.subtree_control=+memory +cpu +pids", "p/cgroup.subtree_control=+memory +cpu +pids",
			"p/id/memory.max=67108864", "p/id/memory.swap.max=0", "p/id/memory.oom.group=1", "p/id/cpu.max=300000 100000", "p/id/pids.max=99",
			"p/id/cgroup.procs=7",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			tree := tt.tree
			tree.parent = "p"
			bases := map[string]string{}
			for c, dir := range tree.bases {
				bases[c] = filepath.Join(root, dir)
				if err := os.MkdirAll(bases[c], 0o755); err != nil {
					t.Fatal(err)
				}
			}
			tree.bases = bases
			var got []string
			tree.Write = func(path, value string) error {
				rel, err := filepath.Rel(root, path)
				got = append(got, rel+"="+value)
				return err
			}
			if err := tree.Create("id", Limits{MemoryBytes: 64 << 20, CPUs: 3, PIDs: 99}); err != nil {
				t.Fatal(err)
			}
			if err := tree.Enter("id", 7); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got\n%q, want\n%q", got, tt.want)
			}
			for _, dir := range tree.Dirs("id") {
				if err := tree.Remove(t.Context(), dir); err != nil {
					t.Error(err)
				}
				if _, err := os.Stat(filepath.Dir(dir)); err == nil {
					t.Errorf("parent of %s is left", dir)
				}
			}
		})
	}
}

// A limit that cannot be set is an error, unless the kernel does not know it.
func TestCgroupWriteFails(t *testing.T) {
	for _, tt := range []struct {
		file string
		err  error
		ok   bool
	}{
		{"memory.limit_in_bytes", os.ErrNotExist, false},
		{"memory.memsw.limit_in_bytes", os.ErrNotExist, true},
		{"memory.memsw.limit_in_bytes", os.ErrInvalid, false},
	} {
		tree := Tree{parent: "p", bases: map[string]string{"memory": t.TempDir()}}
		tree.Write = func(path, _ string) error {
			if filepath.Base(path) == tt.file {
				return tt.err
			}
			return nil
		}
		if err := tree.Create("id", Limits{}); (err == nil) != tt.ok {
			t.Errorf("%s, %v: got %v", tt.file, tt.err, err)
		}
	}
}
