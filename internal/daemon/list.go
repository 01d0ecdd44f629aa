package daemon

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/bouvet-run/bouvet/internal/store"
)

// Get describes a sandbox.
func (s *Service) Get(_ context.Context, owner Owner, id ID) (Sandbox, error) {
	b, err := s.find(owner, id)
	if err != nil {
		return Sandbox{}, err
	}
	b.touch()
	return b.view(), nil
}

// List returns a page of an owner's sandboxes. A token that is none of its own is
// ErrInvalid.
func (s *Service) List(_ context.Context, owner Owner, f Filter) (Page, error) {
	limit, err := pageLimit(f.Limit)
	if err != nil {
		return Page{}, err
	}
	after, err := parseToken(f.Token)
	if err != nil {
		return Page{}, err
	}
	var all []Sandbox
	page := Page{}
	for _, b := range s.every() {
		if !owner.owns(b.owner) {
			continue
		}
		b.mu.Lock()
		told, v := b.toldLocked(), b.viewLocked()
		b.mu.Unlock()
		if !told || !f.matches(&v) {
			continue
		}
		if v.State == StateRunning {
			page.Running++
		}
		all = append(all, v)
	}
	order := func(a, b place) int {
		c := cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.id, b.id))
		if !f.OldestFirst {
			c = -c
		}
		return c
	}
	slices.SortFunc(all, func(a, b Sandbox) int { return order(placeOf(&a), placeOf(&b)) })
	if after != nil {
		i := slices.IndexFunc(all, func(sb Sandbox) bool { return order(placeOf(&sb), *after) > 0 })
		if i < 0 {
			i = len(all)
		}
		all = all[i:]
	}
	if len(all) > limit {
		all = all[:limit]
		page.Next = placeOf(&all[limit-1]).token()
	}
	page.Sandboxes = all
	return page, nil
}

func pageLimit(n int) (int, error) {
	if n < 0 || n > MaxPage {
		return 0, fmt.Errorf("%w: a limit of %d is outside 1..%d", ErrInvalid, n, MaxPage)
	}
	if n == 0 {
		n = MaxPage
	}
	return n, nil
}

func (f *Filter) matches(v *Sandbox) bool {
	for k, want := range f.Metadata {
		if got, ok := v.Metadata[k]; !ok || got != want {
			return false
		}
	}
	name := strings.TrimSuffix(f.Template, defaultTag)
	return (len(f.States) == 0 || slices.Contains(f.States, v.State)) &&
		(f.Template == "" || strings.TrimSuffix(v.Template, defaultTag) == name || v.Alias == name) &&
		(f.StartedAfter.IsZero() || v.StartedAt.After(f.StartedAfter))
}

// A place is where an entry stands in a list.
type place struct {
	at int64
	id string
}

func placeOf(v *Sandbox) place { return place{v.StartedAt.UnixNano(), string(v.ID)} }

func (p place) token() string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(p.at, 10) + "/" + p.id))
}

// maxToken bounds the token of a page, in bytes.
const maxToken = 256

func parseToken(token string) (*place, error) {
	if token == "" {
		return nil, nil
	}
	invalid := fmt.Errorf("%w: %.40q is not the token of a page", ErrInvalid, token)
	if len(token) > maxToken {
		return nil, invalid
	}
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return nil, invalid
	}
	at, id, ok := strings.Cut(string(text), "/")
	n, err := strconv.ParseInt(at, 10, 64)
	if err != nil || !ok {
		return nil, invalid
	}
	return &place{n, id}, nil
}

// SetNetwork replaces what a user asked for in the way of network, but who may send
// requests to it and what host they see, which Create says.
func (s *Service) SetNetwork(_ context.Context, owner Owner, id ID, n Network) error {
	b, err := s.find(owner, id)
	if err != nil {
		return err
	}
	return b.write(store.Change{}, func(r *record) {
		n.AllowPublicTraffic, n.MaskRequestHost = r.Sandbox.Network.AllowPublicTraffic, r.Sandbox.Network.MaskRequestHost
		r.Sandbox.Network = n
	})
}

// Events returns at most limit entries after the cursor, the oldest first, of a sandbox
// that an owner has, or had in the last days.
func (s *Service) Events(ctx context.Context, owner Owner, id ID, after int64, limit int) ([]Event, error) {
	of, err := s.o.Store.Owner(ctx, string(id))
	if err != nil || !owner.owns(of) {
		return nil, fmt.Errorf("sandbox %q: %w", id, ErrNotFound)
	}
	if limit <= 0 || limit > store.MaxEvents {
		limit = store.MaxEvents
	}
	s.events.flush()
	rows, err := s.o.Store.Events(ctx, string(id), after, limit)
	if err != nil {
		return nil, err
	}
	all := make([]Event, len(rows))
	for i, r := range rows {
		all[i] = Event{Seq: r.Seq, Time: r.Time, Sandbox: ID(r.Sandbox), Kind: r.Kind, By: r.By, Detail: r.Detail}
	}
	return all, nil
}

// Snapshots returns a page of an owner's snapshots, the newest first, of one sandbox or
// of one name if they are not empty.
func (s *Service) Snapshots(_ context.Context, owner Owner, sandbox ID, name, token string, limit int) (page []Snapshot, next string, err error) {
	if limit, err = pageLimit(limit); err != nil {
		return nil, "", err
	}
	after, err := parseToken(token)
	if err != nil {
		return nil, "", err
	}
	if name != "" && !strings.Contains(name, ":") {
		name += defaultTag
	}
	var all []Snapshot
	s.mu.Lock()
	for _, sn := range s.snaps {
		if !sn.offered(owner) || sandbox != "" && sn.row.Sandbox != string(sandbox) || name != "" && !slices.Contains(sn.row.Names, name) && sn.public() != name {
			continue
		}
		all = append(all, sn.view())
	}
	s.mu.Unlock()
	spot := func(v *Snapshot) place { return place{v.CreatedAt.UnixNano(), v.ID} }
	order := func(a, b place) int { return -cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.id, b.id)) }
	slices.SortFunc(all, func(a, b Snapshot) int { return order(spot(&a), spot(&b)) })
	if after != nil {
		all = slices.DeleteFunc(all, func(v Snapshot) bool { return order(spot(&v), *after) <= 0 })
	}
	if len(all) > limit {
		all = all[:limit]
		next = spot(&all[limit-1]).token()
	}
	return all, next, nil
}

func (sn *snap) view() Snapshot {
	return Snapshot{
		ID: sn.public(), Names: slices.Clone(sn.row.Names), Sandbox: ID(sn.row.Sandbox), CreatedAt: sn.row.CreatedAt,
		VCPUs: sn.spec.VCPUs, MemoryMiB: sn.spec.MemoryMiB,
	}
}
