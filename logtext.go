package bouvet

import (
	"log/slog"
	"strconv"
)

// guestText is text that a guest chose, or that goes to one: quoted, so that it
// stays on its line, and capped (threat T23). The work is done only if the
// record is written.
type guestText string

// LogValue implements slog.LogValuer.
func (t guestText) LogValue() slog.Value {
	return slog.StringValue(strconv.Quote(capText(string(t))))
}

func guestAttr(key, text string) slog.Attr { return slog.Any(key, guestText(text)) }
