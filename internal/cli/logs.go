package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/vm"
)

const (
	// keptConsoles is how many sandboxes' consoles are kept.
	keptConsoles  = 20
	consoleSuffix = ".console"
	// maxConsoleFile bounds what is read of a file: a line about it, and the console.
	maxConsoleFile = vm.MaxConsole + 4<<10
	latestConsole  = "latest"
)

// A console is what a sandbox's console showed when it ended.
type console struct {
	ID     string    `json:"id"`
	Driver string    `json:"driver"`
	Ended  time.Time `json:"ended"`
	Size   int       `json:"size"`

	text []byte
}

// keepConsole writes the console of a sandbox that ends, or did not start. A failure
// must not be one of the run.
func (s *runSession) keepConsole(id bouvet.SandboxID, text []byte) {
	dir, err := s.backend.Logs()
	if err == nil {
		about := console{ID: id.String(), Driver: s.driver.Name(), Ended: time.Now().UTC(), Size: min(len(text), vm.MaxConsole)}
		err = writeConsole(dir, &about, text[:about.Size])
	}
	if err == nil {
		err = dropConsoles(dir)
	}
	if log := s.log(); err != nil && log != nil {
		log.Debug("console not kept", slog.Any("error", err))
	}
}

func writeConsole(dir string, about *console, text []byte) (err error) {
	head, err := json.Marshal(about)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, about.ID+consoleSuffix)
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(append(head, '\n'), text...))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(path+".new"))
	}
	return nil
}

// dropConsoles removes the oldest, and what was not finished long ago.
func dropConsoles(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	type file struct {
		path string
		at   time.Time
	}
	var files []file
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue // another run has removed it
		}
		f := file{filepath.Join(dir, e.Name()), info.ModTime()}
		switch {
		case strings.HasSuffix(e.Name(), consoleSuffix):
			files = append(files, f)
		case strings.HasSuffix(e.Name(), ".new") && time.Since(f.at) > time.Hour:
			_ = os.Remove(f.path)
		}
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Or(b.at.Compare(a.at), cmp.Compare(a.path, b.path)) })
	for _, f := range files[min(len(files), keptConsoles):] {
		if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// readConsoles returns those that are kept, the latest first.
func readConsoles(dir string) ([]console, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	all := []console{}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), consoleSuffix) {
			continue
		}
		c, err := readConsole(filepath.Join(dir, e.Name()))
		if err == nil {
			all = append(all, c)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("cannot read %s: %w", e.Name(), err)
		}
	}
	slices.SortFunc(all, func(a, b console) int { return cmp.Or(b.Ended.Compare(a.Ended), cmp.Compare(a.ID, b.ID)) })
	return all, nil
}

func readConsole(path string) (c console, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return c, err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxConsoleFile)) //nolint:forbidigo // limited, and our own file.
	if err != nil {
		return c, err
	}
	head, text, _ := bytes.Cut(data, []byte("\n"))
	if err := json.NewDecoder(bytes.NewReader(head)).Decode(&c); err != nil { //nolint:forbidigo // our own file, and limited.
		return c, fmt.Errorf("it is damaged: %w", err)
	}
	c.text = text
	return c, nil
}

func newLogsCommand(w *world) *cobra.Command {
	var asJSON, raw bool
	var id string
	cmd := &cobra.Command{
		Use:   "logs",
		Short: "show the consoles of past sandboxes",
		Long: `Lists the last 20 sandboxes of bouvet run, or with --console shows what one of them
wrote to its console before it ended: the kernel's messages and the agent's, at most
64 KiB. That helps when a sandbox does not start. What it shows was written inside
the sandbox, so control characters are escaped; --raw shows it as it is.`,
		Example: `  bouvet logs
  bouvet logs --console latest`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := w.backend.Logs()
			if err != nil {
				return err
			}
			all, err := readConsoles(dir)
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("console") {
				return w.showConsole(all, id, raw, asJSON)
			}
			if raw {
				return usage("bouvet logs --console latest --raw", "cannot use --raw without --console")
			}
			if asJSON {
				return writeJSON(w.stdout, all)
			}
			rows := [][]string{{"ID", "ENDED", "DRIVER", "SIZE"}}
			for _, c := range all {
				rows = append(rows, []string{c.ID, c.Ended.Local().Format(time.DateTime), c.Driver, humanSize(int64(c.Size))})
			}
			return w.table(rows)
		},
	}
	f := cmd.Flags()
	f.StringVar(&id, "console", "", "show the console of the sandbox with this `ID`, or the beginning of one, or \""+latestConsole+"\"")
	f.BoolVar(&raw, "raw", false, "show it as it is, control characters and all")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	completeFlag(cmd, "console", w.completeConsoles)
	return cmd
}

func (w *world) showConsole(all []console, id string, raw, asJSON bool) error {
	found := slices.DeleteFunc(slices.Clone(all), func(c console) bool { return id == "" || !strings.HasPrefix(c.ID, id) })
	if id == latestConsole {
		found = all[:min(len(all), 1)]
	}
	switch {
	case len(found) == 0:
		return cannot("console_not_found", "bouvet logs", "show the console of %s: none is kept", quoted(id))
	case len(found) > 1:
		return cannot(kindUsage, "bouvet logs", "show the console of %s: several IDs begin like that", quoted(id))
	}
	c := found[0]
	switch {
	case asJSON:
		return writeJSON(w.stdout, struct {
			console
			Console string `json:"console"`
		}{c, string(c.text)})
	case raw:
		_, err := w.stdout.Write(c.text)
		return err
	}
	for line := range bytes.Lines(c.text) {
		text := bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
		w.printf("%s\n", printable(string(text), vm.MaxConsole))
	}
	return nil
}

func (w *world) completeConsoles(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	dir, err := w.backend.Logs()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	all, err := readConsoles(dir)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, c := range append([]console{{ID: latestConsole, Driver: "the last one"}}, all...) {
		if strings.HasPrefix(c.ID, prefix) {
			names = append(names, c.ID+"\t"+c.Driver)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
