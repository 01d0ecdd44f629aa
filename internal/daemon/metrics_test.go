package daemon_test

import (
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/internal/daemon"
)

func TestMetricsAreOfItsLife(t *testing.T) {
	h := newHouse(t)
	sb := h.create(daemon.CreateOptions{})
	var got []daemon.Metric
	h.until("there are some", func() bool {
		var err error
		got, err = h.Metrics(t.Context(), alice, sb.ID, time.Time{}, time.Time{})
		return err == nil && len(got) > 0
	})
	m := got[0]
	if m.MemTotal <= 0 || m.MemUsed <= 0 || m.MemUsed > m.MemTotal || m.DiskTotal <= 0 || m.DiskUsed > m.DiskTotal || m.VCPUs != sb.VCPUs || m.CPUPercent < 0 || m.CPUPercent > 100 {
		t.Errorf("sample %+v", m)
	}
	for _, tt := range []struct {
		from, to time.Time
		want     int
	}{
		{from: sb.StartedAt, to: time.Now(), want: 1},
		{to: sb.StartedAt, want: 0},
		{from: time.Now().Add(time.Hour), want: 0},
	} {
		if got, err := h.Metrics(t.Context(), alice, sb.ID, tt.from, tt.to); err != nil || len(got) < tt.want || tt.want == 0 && len(got) > 0 {
			t.Errorf("from %v to %v: %+v, %v", tt.from, tt.to, got, err)
		}
	}
}
