package proc

import "strings"

// defaultPath is the PATH of a process when this program has none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environment returns base with what the user, the terminal and the caller add,
// each key once, the last value of it.
func environment(base, added []string, account *Account, tty bool) []string {
	env := make([]string, 0, len(base)+len(added)+5)
	env = append(env, "PATH="+defaultPath)
	if tty {
		env = append(env, "TERM=xterm-256color")
	}
	env = append(env, base...)
	if account != nil {
		env = append(env, "HOME="+account.Home, "USER="+account.Name, "LOGNAME="+account.Name)
	}
	env = append(env, added...)
	last := make(map[string]int, len(env))
	for i, kv := range env {
		key, _, _ := strings.Cut(kv, "=")
		last[key] = i
	}
	out := env[:0]
	for i, kv := range env {
		if key, _, _ := strings.Cut(kv, "="); last[key] == i {
			out = append(out, kv)
		}
	}
	return out
}

func lookUp(env []string, key string) string {
	for _, kv := range env {
		if k, v, ok := strings.Cut(kv, "="); ok && k == key {
			return v
		}
	}
	return ""
}
