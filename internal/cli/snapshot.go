package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bouvet-run/bouvet/internal/snapstore"
)

func newSnapshotCommand(w *world) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "list and remove saved sandboxes",
		Long: `Snapshots are saved sandboxes: bouvet run --snapshot NAME makes one, bouvet run
--from-snapshot NAME runs in a copy. Each belongs to the driver, its version, the
processor and the image it was made with, and is refused elsewhere. It holds the
sandbox's whole memory, secrets included. They are kept in the state directory, which
bouvet doctor shows and BOUVET_STATE_DIR changes.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSnapshotListCommand(w), newSnapshotInspectCommand(w), newSnapshotRemoveCommand(w))
	return cmd
}

func newSnapshotListCommand(w *world) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list the snapshots",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			store, err := w.backend.Snapshots()
			if err != nil {
				return err
			}
			all, err := store.List()
			if err != nil {
				return err
			}
			if asJSON {
				if all == nil {
					all = []snapstore.Info{}
				}
				return writeJSON(w.stdout, all)
			}
			rows := [][]string{{"NAME", "DRIVER", "MEMORY", "CPUS", "DISK", "SIZE", "IMAGE", "CREATED"}}
			for _, info := range all {
				m := info.Manifest
				if m == nil {
					rows = append(rows, []string{info.Name, clip("unusable: "+info.Problem, 60), "", "", "", humanSize(info.Size), "", ""})
					continue
				}
				rows = append(rows, []string{
					info.Name, m.Driver, mebibytes(m.MemoryMiB), strconv.Itoa(m.VCPUs), mebibytes(m.DiskMiB), humanSize(info.Size),
					shortDigest(m.Image), m.Created.Local().Format(time.DateTime),
				})
			}
			return w.table(rows)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	return cmd
}

// mebibytes is a size as its flag takes it; empty for none.
func mebibytes(n int) string {
	if n == 0 {
		return ""
	}
	size := byteSize(n) << 20
	return size.String()
}

func newSnapshotInspectCommand(w *world) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "inspect NAME",
		Short:             "show what is known of a snapshot",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: w.completeSnapshots,
		RunE: func(_ *cobra.Command, args []string) error {
			store, err := w.backend.Snapshots()
			if err != nil {
				return err
			}
			info, err := store.Inspect(args[0])
			if err != nil {
				return fmt.Errorf("cannot inspect snapshot: %w", err)
			}
			if asJSON {
				return writeJSON(w.stdout, info)
			}
			return w.showSnapshot(&info)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (w *world) showSnapshot(info *snapstore.Info) error {
	rows := [][]string{{"name", info.Name}, {"size", humanSize(info.Size)}, {"path", info.Path}}
	m := info.Manifest
	if m == nil {
		return w.table(append(rows, []string{"problem", info.Problem}))
	}
	rows = append(rows, [][]string{
		{"created", m.Created.Local().Format(time.DateTime)},
		{"driver", m.Driver + ", " + m.DriverVersion},
		{"processor", m.CPU},
		{"kernel", m.Kernel},
		{"image", m.Image},
		{"memory", mebibytes(m.MemoryMiB)},
		{"cpus", strconv.Itoa(m.VCPUs)},
		{"disk", mebibytes(m.DiskMiB)},
	}...)
	for _, f := range m.Files {
		rows = append(rows, []string{"file", fmt.Sprintf("%s, %s", f.Name, humanSize(f.Size))})
	}
	return w.table(rows)
}

func newSnapshotRemoveCommand(w *world) *cobra.Command {
	var asJSON, force bool
	cmd := &cobra.Command{
		Use:               "rm NAME...",
		Aliases:           []string{"remove"},
		Short:             "remove snapshots",
		Long:              `Removes snapshots. One that a sandbox uses stays.`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: w.completeSnapshots,
		RunE: func(_ *cobra.Command, args []string) error {
			store, err := w.backend.Snapshots()
			if err != nil {
				return err
			}
			removed := []string{}
			var errs []error
			for _, name := range args {
				switch err := store.Remove(name); {
				case err == nil:
					removed = append(removed, name)
				case force && errors.Is(err, snapstore.ErrNotFound):
				default:
					errs = append(errs, err)
				}
			}
			if asJSON && len(errs) == 0 {
				return writeJSON(w.stdout, map[string][]string{"removed": removed})
			}
			if !asJSON {
				for _, name := range removed {
					w.printf("%s\n", name)
				}
			}
			return errors.Join(errs...)
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "a name that does not exist is no error")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

// completeSnapshots offers the names of snapshots.
func (w *world) completeSnapshots(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	store, err := w.backend.Snapshots()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	all, err := store.List()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	given := map[string]bool{}
	for _, a := range args {
		given[a] = true
	}
	var names []string
	for _, info := range all {
		if !given[info.Name] && strings.HasPrefix(info.Name, prefix) {
			about := "unusable"
			if info.Manifest != nil {
				about = info.Manifest.Driver
			}
			names = append(names, info.Name+"\t"+clip(about, 60))
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
