package transport

import "time"

// parseUTC reads a time in the format of [Event.Message], in UTC and with a year of four digits.
// Other formats are left to time.Parse. Its deep calls make the goroutine of a message grow its
// stack, which took longer than the rest of Parse.
func parseUTC(s string) (t time.Time, ok bool) {
	const shortest = len("2006-01-02T15:04:05Z")
	if len(s) < shortest || s[len(s)-1] != 'Z' ||
		s[4] != '-' || s[7] != '-' || s[10] != 'T' || s[13] != ':' || s[16] != ':' {
		return time.Time{}, false
	}
	century, year, month, day := two(s, 0), two(s, 2), two(s, 5), two(s, 8)
	hour, minute, second := two(s, 11), two(s, 14), two(s, 17)
	if century|year|month|day|hour|minute|second < 0 || hour > 23 || minute > 59 || second > 59 {
		return time.Time{}, false
	}
	year += 100 * century
	if month < 1 || month > 12 || day < 1 || day > daysIn(year, month) {
		return time.Time{}, false
	}
	nanos, ok := fraction(s[shortest-1 : len(s)-1])
	if !ok {
		return time.Time{}, false
	}
	seconds := daysSince1970(year, month, day)*86400 + int64(hour*3600+minute*60+second)
	return time.Unix(seconds, int64(nanos)).UTC(), true
}

// two returns the number in the two digits at i, or -1.
func two(s string, i int) int {
	tens, ones := s[i]-'0', s[i+1]-'0'
	if tens > 9 || ones > 9 {
		return -1
	}
	return int(tens)*10 + int(ones)
}

// fraction reads an empty text, or a point and up to nine digits, as nanoseconds.
func fraction(s string) (nanos int, ok bool) {
	if s == "" {
		return 0, true
	}
	if s[0] != '.' || len(s) < 2 || len(s) > 10 {
		return 0, false
	}
	for i := 1; i < 10; i++ {
		digit := byte(0)
		if i < len(s) {
			digit = s[i] - '0'
		}
		if digit > 9 {
			return 0, false
		}
		nanos = nanos*10 + int(digit)
	}
	return nanos, true
}

func daysIn(year, month int) int {
	switch month {
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	case 4, 6, 9, 11:
		return 30
	default:
		return 31
	}
}

// daysSince1970 counts days of the Gregorian calendar, for years from 0. Its years begin in March,
// so that the leap day is the last day: Howard Hinnant's days_from_civil.
func daysSince1970(year, month, day int) int64 {
	if month <= 2 {
		year--
	}
	era := (year + 400) / 400 // of 400 years or 146097 days, counted from 1 to stay positive
	ofEra := year + 400 - era*400
	ofYear := (153*((month+9)%12)+2)/5 + day - 1
	return int64((era-1)*146097+ofEra*365+ofEra/4-ofEra/100+ofYear) - 719468
}
