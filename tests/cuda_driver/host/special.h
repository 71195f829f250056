// Functions of CUDA's mathematics that a host's lacks: multiples of pi, inverses of the error function, the normal
// distribution, Bessel functions, norms. Those of floats are the doubles', rounded.

#pragma once
#include <cmath>
#include <math.h>

// (newer glibc declare functions of these names)
#define sinpi device_sinpi
#define sinpif device_sinpif
#define cospi device_cospi
#define cospif device_cospif
#define rsqrt device_rsqrt
#define rsqrtf device_rsqrtf

#define IN_FLOAT(name)                                                        \
    static inline float name##f(float x) { return (float)name((double)x); } \
    static inline float name(float x) { return name##f(x); }

// sin(pi x) and cos(pi x): exact where they are 0 or 1, as x is taken into one turn before it is multiplied.
static inline double sinpi(double x) {
    double part = fmod(x, 2.0);
    if (fabs(part) > 1.0) part -= copysign(2.0, part);
    if (fabs(part) > 0.5) part = copysign(1.0, part) - part;
    if (fabs(part) == 0.5) return copysign(1.0, part);
    return part == 0 ? part : fabs(part) > 0.25 ? copysign(cos(M_PI * (0.5 - fabs(part))), part) : sin(M_PI * part);
}
static inline double cospi(double x) {
    double part = fmod(fabs(x), 2.0);
    if (part > 1.0) part = 2.0 - part;
    return part == 0.5 ? 0.0 : part > 0.25 && part < 0.75 ? sin(M_PI * (0.5 - part)) : cos(M_PI * part);
}
IN_FLOAT(sinpi)
IN_FLOAT(cospi)
static inline void sincospi(double x, double* sine, double* cosine) { *sine = sinpi(x), *cosine = cospi(x); }
static inline void sincospif(float x, float* sine, float* cosine) { *sine = sinpif(x), *cosine = cospif(x); }
static inline void sincospi(float x, float* sine, float* cosine) { sincospif(x, sine, cosine); }

// Where the error function is x, and where its complement is: S. Winitzki's approximation (2008), then Halley's method.
static inline double erfinv_start(double log_of_rest) {  // log(1 - x^2)
    double half = 2 / (M_PI * 0.147) + log_of_rest / 2;
    return sqrt(sqrt(half * half - log_of_rest / 0.147) - half);
}
static inline double erfinv(double x);
static inline double erfcinv(double x) {
    if (!(x > 0 && x < 2)) return x == 0 ? INFINITY : x == 2 ? -INFINITY : NAN;
    if (x >= 0.5) return erfinv(1 - x);
    double y = erfinv_start(log(x) + log(2 - x));
    for (int step = 0; step < 5; step++) {
        double by = (x - erfc(y)) * exp(y * y) / M_2_SQRTPI;
        y -= by / (1 + y * by);
    }
    return y;
}
static inline double erfinv(double x) {
    if (!(fabs(x) <= 0.5)) return copysign(erfcinv(1 - fabs(x)), x);
    double y = copysign(erfinv_start(log1p(-x * x)), x);
    for (int step = 0; step < 3; step++) {
        double by = (erf(y) - x) * exp(y * y) / M_2_SQRTPI;
        y -= by / (1 + y * by);
    }
    return x == 0 ? x : y;
}
IN_FLOAT(erfcinv)
IN_FLOAT(erfinv)

static inline double normcdf(double x) { return 0.5 * erfc(-x * M_SQRT1_2); }
static inline double normcdfinv(double x) { return -M_SQRT2 * erfcinv(2 * x); }
static inline double erfcx(double x) {  // exp(x^2) erfc(x); for large x by its asymptotic series
    if (x < 10) return exp(x * x) * erfc(x);
    double sum = 1;
    for (int odd = 25; odd > 0; odd -= 2) sum = 1 - odd / (2 * x * x) * sum;
    return sum / (x * sqrt(M_PI));
}
IN_FLOAT(normcdf)
IN_FLOAT(normcdfinv)
IN_FLOAT(erfcx)

extern "C" double driver_bessel_i(double order, double x);  // source/execution.cpp
static inline double cyl_bessel_i0(double x) { return driver_bessel_i(0, fabs(x)); }
static inline double cyl_bessel_i1(double x) { return copysign(driver_bessel_i(1, fabs(x)), x); }
IN_FLOAT(cyl_bessel_i0)
IN_FLOAT(cyl_bessel_i1)

static inline double exp10(int x) { return pow(10.0, x); }
static inline double rsqrt(double x) { return 1 / sqrt(x); }
static inline double rcbrt(double x) { return 1 / cbrt(x); }
IN_FLOAT(rsqrt)
IN_FLOAT(rcbrt)
static inline double norm3d(double a, double b, double c) { return std::hypot(a, b, c); }
static inline double norm4d(double a, double b, double c, double d) { return hypot(hypot(a, b), hypot(c, d)); }
static inline double rhypot(double a, double b) { return 1 / hypot(a, b); }
static inline double rnorm3d(double a, double b, double c) { return 1 / norm3d(a, b, c); }
static inline double rnorm4d(double a, double b, double c, double d) { return 1 / norm4d(a, b, c, d); }

#undef IN_FLOAT
