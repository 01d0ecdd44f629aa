package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/bouvet-run/bouvet/internal/daemon"
	"github.com/bouvet-run/bouvet/internal/server"
	"github.com/bouvet-run/bouvet/internal/store"
)

func newKeyCommand(w *world) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "key",
		Short: "make, list and revoke API keys of the daemon",
		Long: `API keys are for programs that use bouvet serve over TCP. They are kept as hashes in the
daemon's database, which these commands open themselves, so that they work whether the
daemon runs or not; what they change holds at once.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentFlags().StringVar(&dir, "state-dir", "", "`DIR`ectory of the daemon's state")
	cmd.AddCommand(newKeyCreateCommand(w, &dir), newKeyListCommand(w, &dir), newKeyRevokeCommand(w, &dir))
	return cmd
}

// withKeys opens the daemon's database for do.
func (w *world) withKeys(ctx context.Context, dir string, do func(db *store.Store) error) error {
	if dir == "" {
		dir, _ = w.lookupEnv("BOUVET_STATE_DIR")
	}
	db, err := server.OpenDatabase(ctx, dir)
	if err != nil {
		return serveProblem(err)
	}
	err = do(db)
	return errors.Join(err, db.Close())
}

func newKeyCreateCommand(w *world, dir *string) *cobra.Command {
	var name, owner string
	var admin, asJSON bool
	cmd := &cobra.Command{
		Use:   "create",
		Short: "make an API key and show it, once",
		Long: `Makes an API key. What is made with it belongs to its owner, an identity of its own
unless --owner names one, so that several keys can be of one owner.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return w.withKeys(cmd.Context(), *dir, func(db *store.Store) error {
				key, k, err := daemon.NewKey(cmd.Context(), db, name, owner, admin)
				if err != nil {
					return err
				}
				if asJSON {
					return writeJSON(w.stdout, struct {
						APIKey string `json:"api_key"`
						daemon.Key
					}{key, k})
				}
				w.printf("%s\n", key)
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "what to call it")
	cmd.Flags().StringVar(&owner, "owner", "", "the `ID` of the owner to whom it gives access")
	cmd.Flags().BoolVar(&admin, "admin", false, "let it see and change what belongs to others")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

func newKeyListCommand(w *world, dir *string) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list the API keys",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return w.withKeys(cmd.Context(), *dir, func(db *store.Store) error {
				keys, err := daemon.Keys(cmd.Context(), db)
				if err != nil {
					return err
				}
				if asJSON {
					return writeJSON(w.stdout, append([]daemon.Key{}, keys...))
				}
				rows := [][]string{{"ID", "KEY", "NAME", "OWNER", "ADMIN", "CREATED", "USED", "REVOKED"}}
				for _, k := range keys {
					admin := ""
					if k.Admin {
						admin = "yes"
					}
					rows = append(rows, []string{k.ID, k.Prefix + "...", k.Name, k.Owner, admin, dateTime(k.Created), dateTime(k.Used), dateTime(k.Revoked)})
				}
				return w.table(rows)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	return cmd
}

// dateTime is a time for people; empty for none.
func dateTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format(time.DateTime)
}

func newKeyRevokeCommand(w *world, dir *string) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "revoke ID...",
		Short: "end API keys",
		Long:  `Ends API keys, named by their IDs or by how they begin. Their sandboxes stay.`,
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return w.withKeys(cmd.Context(), *dir, func(db *store.Store) error {
				revoked := []string{}
				var errs []error
				keys, err := daemon.Keys(cmd.Context(), db)
				if err != nil {
					return err
				}
				for _, name := range args {
					id, err := keyNamed(keys, name)
					if err == nil {
						err = db.RevokeKey(cmd.Context(), id, time.Now())
					}
					if err != nil {
						errs = append(errs, err)
						continue
					}
					revoked = append(revoked, id)
				}
				if asJSON && len(errs) == 0 {
					return writeJSON(w.stdout, map[string][]string{"revoked": revoked})
				}
				if !asJSON {
					for _, id := range revoked {
						w.printf("%s\n", id)
					}
				}
				return errors.Join(errs...)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

// keyNamed finds the ID of the one key that a user means.
func keyNamed(keys []daemon.Key, name string) (string, error) {
	match := func(k daemon.Key) bool { return k.ID == name || k.Prefix == name }
	i := slices.IndexFunc(keys, match)
	switch {
	case i < 0:
		return "", &problem{kind: kindKeyMissing, err: fmt.Errorf("there is no API key %.60q", name), remedy: "bouvet key ls"}
	case slices.ContainsFunc(keys[i+1:], match):
		return "", &problem{kind: kindKeyMissing, err: fmt.Errorf("several API keys are %.60q", name), remedy: "its ID, which bouvet key ls shows"}
	}
	return keys[i].ID, nil
}
