package daemon

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/internal/store"
)

// Names that stand for the default image as long as no image has them.
const (
	baseTemplate        = "base"
	interpreterTemplate = "code-interpreter-v1"
)

// Templates returns all that an owner can make sandboxes of: images and its snapshots.
func (s *Service) Templates(ctx context.Context, owner Owner) ([]Template, error) {
	all, err := s.imageTemplates(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	for _, sn := range s.snaps {
		if sn.offered(owner) {
			all = append(all, sn.template())
		}
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b Template) int { return cmp.Compare(a.ID, b.ID) })
	return all, nil
}

func (sn *snap) template() Template {
	return Template{
		ID: sn.public(), Names: slices.Clone(sn.row.Names), VCPUs: sn.spec.VCPUs, MemoryMiB: sn.spec.MemoryMiB,
		CreatedAt: sn.row.CreatedAt, Snapshot: true,
	}
}

// Template finds a template or snapshot by its ID or any of its names, with ":default"
// or without.
func (s *Service) Template(ctx context.Context, owner Owner, name string) (Template, error) {
	if sn := s.userSnap(owner, name); sn != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		return sn.template(), nil
	}
	return s.imageTemplate(ctx, name)
}

// imageTemplate finds the template of an image.
func (s *Service) imageTemplate(ctx context.Context, name string) (Template, error) {
	all, err := s.imageTemplates(ctx)
	if err != nil {
		return Template{}, err
	}
	if name == "" {
		name = baseTemplate
	}
	for _, want := range []string{name, strings.TrimSuffix(name, defaultTag), strings.TrimSuffix(name, ":latest")} {
		for _, t := range all {
			if t.ID == want || slices.Contains(t.Names, want) {
				return t, nil
			}
		}
	}
	return Template{}, fmt.Errorf("template %.80q: %w", name, ErrNotFound)
}

// imageTemplates returns the templates of all images.
func (s *Service) imageTemplates(ctx context.Context) ([]Template, error) {
	if s.o.Images == nil {
		return nil, nil
	}
	images, err := s.o.Images.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot list templates: %w", err)
	}
	taken := map[string]bool{}
	for _, i := range images {
		taken[i.Name] = true
	}
	all := make([]Template, 0, len(images))
	for _, i := range images {
		if i.Problem != "" {
			continue
		}
		t := Template{ID: i.Name, Names: []string{i.Name}, Image: i.Name, VCPUs: s.o.VCPUs, MemoryMiB: s.o.MemoryMiB, CreatedAt: i.Created}
		if i.Name == bouvet.DefaultImage {
			for _, other := range []string{interpreterTemplate, baseTemplate} {
				if !taken[other] {
					t.Names = append([]string{other}, t.Names...)
				}
			}
			t.ID = t.Names[0]
		}
		all = append(all, t)
	}
	return all, nil
}

// DeleteTemplate deletes a snapshot: nothing can be made of it any more, and its files go
// with the last sandbox that runs on them. Images are the administrator's, who removes
// them with bouvet image rm.
func (s *Service) DeleteTemplate(ctx context.Context, owner Owner, id string) error {
	sn := s.userSnap(owner, id)
	if sn == nil {
		if _, err := s.imageTemplate(ctx, id); err != nil {
			return err
		}
		return fmt.Errorf("%w: template %.80q is an image of this host; bouvet image rm removes it", ErrUnsupported, id)
	}
	if !s.take(sn) {
		return fmt.Errorf("template %.80q: %w", id, ErrNotFound)
	}
	defer s.drop(sn)
	s.mu.Lock()
	gone := sn.doomed
	row := sn.row
	s.mu.Unlock()
	if gone {
		return fmt.Errorf("template %.80q: %w", id, ErrNotFound)
	}
	row.State = store.Deleting
	if err := s.apply(store.Change{SetSnapshot: &row, Durable: true}); err != nil {
		return err
	}
	s.o.Failpoint("delete:intent")
	s.mu.Lock()
	gone, sn.doomed = sn.doomed, true
	s.mu.Unlock()
	if gone {
		return fmt.Errorf("template %.80q: %w", id, ErrNotFound)
	}
	return nil
}
